"""Communicates until a rank is lost, prints that and ends."""

import os

import jax
import sum_of_ranks
from absl import app, flags

import jax_cxl

_POOL = flags.DEFINE_string("pool", None, "URI of the pool.")


def main(_) -> None:
    jax_cxl.initialize(_POOL.value)
    total = sum_of_ranks.compile_sum()
    total().block_until_ready()
    print(f"ready {jax.process_index()} {os.getpid()}", flush=True)
    try:
        while True:
            total().block_until_ready()
    except jax_cxl.PeerLostError as error:
        print(f"lost rank {error.rank}", flush=True)
        os._exit(3)  # A normal exit would wait for the lost rank in jax.distributed.


if __name__ == "__main__":
    app.run(main)
