"""One of the two processes of a job: it communicates and ends, or process 1 dies, as `how` says."""

import os
import sys
import time

import jax
import numpy as np

import jax_cxl


def main(port: int, process: int, pool: str, how: str) -> None:
    jax.distributed.initialize(f"127.0.0.1:{port}", 2, process)
    jax_cxl.initialize(pool)
    mesh = jax_cxl.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    total = jax.jit(
        jax.shard_map(
            lambda x: jax_cxl.psum(x, "i"), mesh=mesh, in_specs=jax.P(), out_specs=jax.P()
        )
    )
    print("sum", int(total(np.float32(1))), flush=True)
    if how == "die" and process == 1:
        os._exit(9)  # Tells nobody anything, as a kill.
    began = time.monotonic()
    try:
        if how == "die":
            total(np.float32(1)).block_until_ready()
    except jax_cxl.PeerLostError as error:
        print(f"lost rank {error.rank} after {time.monotonic() - began:.1f} s: {error}", flush=True)
        sys.exit(3)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
