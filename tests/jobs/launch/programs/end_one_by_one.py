"""Rank 1 ends with status 0, and afterwards rank 0 with status 5.

The argument is a file into which rank 1 writes its process id.
"""

import os
import pathlib
import sys
import time

own = pathlib.Path(sys.argv[1])
if os.environ["JAX_CXL_LAUNCH_RANK"] == "1":
    own.with_suffix(".new").write_text(str(os.getpid()))
    own.with_suffix(".new").rename(own)
    sys.exit(0)
while not own.exists():
    time.sleep(0.01)
# The launcher has waited for the process once it no longer exists.
while os.path.exists(f"/proc/{own.read_text()}"):
    time.sleep(0.01)
sys.exit(5)
