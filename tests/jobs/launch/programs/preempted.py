"""Rank 1 fails while rank 0 waits. JAX's preemption service swallows SIGTERM."""

import os
import sys
import time

import jax

jax.distributed.initialize()
print("connected", flush=True)
if os.environ["JAX_CXL_LAUNCH_RANK"] == "1":
    time.sleep(1)  # So that rank 0, too, has said that it is connected.
    if "_exit" in sys.argv:
        os._exit(5)
    elif "exit" in sys.argv:
        sys.exit(5)
    elif "raise" in sys.argv:
        raise RuntimeError("the script's own error")
time.sleep(600)
