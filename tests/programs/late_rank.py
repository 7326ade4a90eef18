"""The last rank, or every rank, sleeps 3 ms before each of 600 calls, as the argument says."""

import sys
import time

import jax
import numpy as np

import jax_cxl
from jax_cxl._job import lateness


def main() -> None:
    lateness.INTERVAL = 0.5
    jax_cxl.initialize()
    mesh = jax_cxl.make_mesh(
        (jax.device_count(),), ("i",), axis_types=(jax.sharding.AxisType.Auto,)
    )
    total = jax.jit(
        jax.shard_map(
            lambda x: jax_cxl.psum(x, "i"), mesh=mesh, in_specs=jax.P(), out_specs=jax.P()
        )
    )
    takes_time = sys.argv[1] == "each" or jax.process_index() == jax.process_count() - 1
    for _ in range(600):
        if takes_time:
            time.sleep(0.003)
        total(np.float32(1)).block_until_ready()


if __name__ == "__main__":
    main()
