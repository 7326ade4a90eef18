"""A process of a job without the launcher: one process dies, and the others raise and end."""

import atexit
import os
import signal
import sys
import time

import jax
import numpy as np

import jax_cxl


def main(port: int, process: int, processes: int, victim: int, pool: str) -> None:
    atexit.register(print, "other handlers ran", flush=True)
    jax.distributed.initialize(f"127.0.0.1:{port}", processes, process)
    jax_cxl.initialize(pool)
    mesh = jax_cxl.make_mesh((processes,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    total = jax.jit(
        jax.shard_map(
            lambda x: jax_cxl.psum(x, "i"), mesh=mesh, in_specs=jax.P(), out_specs=jax.P()
        )
    )
    total(np.float32(1)).block_until_ready()
    if process == victim:
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    total(np.float32(1)).block_until_ready()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:5]), sys.argv[5])
