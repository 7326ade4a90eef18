"""Rank 0 asks a question at the terminal; then all ranks sleep."""

import os
import time

if os.environ["JAX_CXL_LAUNCH_RANK"] == "0":
    print("hello", input("name? "), flush=True)
time.sleep(600)
