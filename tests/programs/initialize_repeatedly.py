"""Initializes jax_cxl, twice with an error, then three times with success and communication.

Process 0 also launches the program while jax_cxl is not running.
"""

import jax
import numpy as np

import jax_cxl


def main() -> None:
    jax.distributed.initialize()
    for _ in range(2):
        try:
            jax_cxl.initialize("file:/no/such/folder/pool?size=64MiB")
        except jax_cxl.PoolError:
            print("no pool", flush=True)
    mesh = jax_cxl.make_mesh(
        (jax.device_count(),), ("i",), axis_types=(jax.sharding.AxisType.Auto,)
    )
    total = jax.jit(
        jax.shard_map(
            lambda x: jax_cxl.psum(x, "i"), mesh=mesh, in_specs=jax.P(), out_specs=jax.P(),
            check_vma=False,
        )
    )  # fmt: skip
    for _ in range(3):
        jax_cxl.initialize()
        # Many launches at once, so that a call of one of them could be matched with another's.
        sums = [total(np.float32(x)) for x in range(12)]
        print(f"sums {[int(x) for x in sums]}", flush=True)
        jax_cxl.shutdown()
        if jax.process_index() == 0:
            try:
                total(np.float32(1)).block_until_ready()
            except jax_cxl.NotInitializedError:
                print("not running", flush=True)


if __name__ == "__main__":
    main()
