"""Ends rank 1 as the command line says, while the other ranks sleep.

The first argument is an exit status, or minus the number of a signal, or "raise". With "stubborn",
the other ranks ignore SIGTERM.
"""

import os
import signal
import sys
import time

how = sys.argv[1]
if os.environ["JAX_CXL_LAUNCH_RANK"] != "1":
    if "stubborn" in sys.argv:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(0 if how == "0" else 600)
elif how == "raise":
    raise RuntimeError("the script's own error")
elif int(how) < 0:
    os.kill(os.getpid(), -int(how))
    time.sleep(600)
else:
    time.sleep(0.2)
    sys.exit(int(how))
