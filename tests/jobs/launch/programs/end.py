"""Ends rank 1 as the command line says, while the other ranks sleep.

The first argument is an exit status, or minus the number of a signal, or "raise". If there is a
second argument, rank 0 ignores SIGTERM, and then makes a file with this name, for which rank 1
waits.
"""

import os
import pathlib
import signal
import sys
import time

how = sys.argv[1]
if os.environ["JAX_CXL_LAUNCH_RANK"] != "1":
    if len(sys.argv) > 2:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        pathlib.Path(sys.argv[2]).touch()
    time.sleep(0 if how == "0" else 600)
elif how == "raise":
    raise RuntimeError("the script's own error")
elif int(how) < 0:
    os.kill(os.getpid(), -int(how))
    time.sleep(600)
else:
    time.sleep(0.2)
    while len(sys.argv) > 2 and not os.path.exists(sys.argv[2]):
        time.sleep(0.01)
    sys.exit(int(how))
