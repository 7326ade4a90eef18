"""Rank 1 fails and does not come to its end; rank 0 ends well once rank 1 is gone.

The argument is a file that is not there yet.
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
