"""Runs pytest in forks of a process that has imported JAX already, which saves seconds in each run.

    python server.py     in the folder of the tests

It reads requests from its input, each a line of JSON, and answers each with a line of JSON. A
request has `arguments` (for pytest), `seconds` (a limit) and `environment`. The answer has `status`
(the exit status of pytest, or None if the limit was over first) and `output`.
"""

import contextlib
import importlib.util
import json
import os
import signal
import sys
import tempfile
import time
from typing import Any

_MODULES = ("absl.testing.parameterized", "hypothesis", "jax.numpy", "ml_dtypes", "pytest", "scipy")
_OUTPUT = 4000  # The last characters are enough to see which test failed.


def main() -> None:
    """Answers requests until its input ends."""
    sys.path[0] = os.getcwd()
    package = importlib.util.find_spec("jax_cxl")
    assert package and package.origin == f"{os.getcwd()}/jax_cxl/__init__.py", package
    for module in _MODULES:
        importlib.import_module(module)
    for line in sys.stdin:
        print(json.dumps(_run(json.loads(line))), flush=True)


def _run(request: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryFile() as output:
        child = os.fork()
        if not child:
            os.setsid()
            null = os.open(os.devnull, os.O_RDONLY)
            for to, file in enumerate((null, output.fileno(), output.fileno())):
                os.dup2(file, to)
            os.environ.update(request["environment"])
            import pytest

            options = ["-q", "--tb=short", "-p", "no:cacheprovider"]
            status = int(pytest.main([*options, *request["arguments"]]))
            sys.stdout.flush()
            os._exit(status)
        status = _wait(child, request["seconds"])
        output.seek(0)
        return {"status": status, "output": output.read().decode(errors="replace")[-_OUTPUT:]}


def _wait(child: int, seconds: float) -> int | None:
    """Returns the status of a child, or None if it has not ended in time."""
    passed, before = 0.0, time.monotonic()
    while passed < seconds:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            _kill_group(child)  # What the tests have left behind.
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
        now = time.monotonic()
        passed += min(now - before, 1)  # A person may suspend all of this, for as long as needed.
        before = now
    _kill_group(child)
    os.waitpid(child, 0)
    return None


def _kill_group(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


if __name__ == "__main__":
    main()
