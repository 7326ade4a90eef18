"""Gets stuck in a collective, because one rank dies, stops or does not come."""

import os
import signal
import sys
import time

import jax
import sum_of_ranks

import jax_cxl


def main() -> None:
    jax_cxl.initialize()
    total = sum_of_ranks.compile_sum()
    for _ in range(3):
        total().block_until_ready()
    time.sleep(0.5)  # Until a heartbeat has told the others of these calls.
    print(f"ready {os.getpid()}", flush=True)
    how = sys.argv[1]
    if how == "all_die":
        time.sleep(1)
        os.kill(os.getpid(), signal.SIGKILL)
    if jax.process_index() == 1:
        if how == "late":
            time.sleep(100)
        os.kill(os.getpid(), {"die": signal.SIGKILL, "stop": signal.SIGSTOP}[how])
    total().block_until_ready()


if __name__ == "__main__":
    main()
