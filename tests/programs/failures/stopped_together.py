"""The last rank keeps the others waiting in a collective until a file exists."""

import os
import pathlib
import sys
import time

import jax
import sum_of_ranks

import jax_cxl


def main() -> None:
    jax_cxl.initialize()
    total = sum_of_ranks.compile_sum()
    total().block_until_ready()
    print(f"ready {os.getpid()}", flush=True)
    if jax.process_index() == jax.process_count() - 1:
        while not pathlib.Path(sys.argv[1]).exists():
            time.sleep(0.01)
    print(f"sum {int(total())}", flush=True)


if __name__ == "__main__":
    main()
