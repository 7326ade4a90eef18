"""Fails on rank 1 until it has been started again as often as the command line says."""

import os
import sys
import time

attempt = int(os.environ["JAX_CXL_LAUNCH_RESTARTS"])
if attempt == int(sys.argv[1]):
    print("done")
elif os.environ["JAX_CXL_LAUNCH_RANK"] == "1":
    sys.exit(3)
else:
    time.sleep(600)
