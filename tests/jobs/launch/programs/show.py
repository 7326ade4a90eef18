"""Prints how this rank sees itself, as one line of JSON."""

import json
import os
import sys

import jax_cxl.launch


def answer() -> str:
    return "from the script's own __main__"


json.dump(
    {
        "arguments": sys.argv[1:],
        "file": os.path.basename(sys.argv[0]),
        "main": sys.modules["__main__"].answer(),
        "folder": os.path.basename(sys.path[0]),
        "rank": int(os.environ["JAX_CXL_LAUNCH_RANK"]),
        "launched": jax_cxl.launch.launched(),
        "jax": "jax" in sys.modules,
        "stdin": sys.stdin.read(),
        "cores": sorted(os.sched_getaffinity(0)),
        "session": os.getsid(0),
        "leads_group": os.getpgrp() == os.getpid(),
    },
    sys.stdout,
)
print()
