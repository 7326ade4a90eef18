"""Rank 1 fails and takes its time to clean up; the others sleep."""

import atexit
import os
import sys
import time


def clean_up() -> None:
    time.sleep(0.5)
    print("handler")


if os.environ["JAX_CXL_LAUNCH_RANK"] == "1":
    atexit.register(clean_up)
    sys.exit(6)
time.sleep(600)
