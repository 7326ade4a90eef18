"""Rank 1 fails and hangs while it exits. Rank 0 ends normally once rank 1 is gone.

The argument is the path of a file that does not exist yet. Rank 1 writes its process id there.
"""

import atexit
import os
import pathlib
import sys
import time

file = pathlib.Path(sys.argv[1])
if os.environ["JAX_CXL_LAUNCH_RANK"] == "1":
    atexit.register(time.sleep, 600)
    file.with_suffix(".part").write_text(str(os.getpid()))
    file.with_suffix(".part").rename(file)
    sys.exit(6)
while not file.exists():
    time.sleep(0.02)
process = pathlib.Path("/proc", file.read_text())
while process.exists():
    time.sleep(0.02)
