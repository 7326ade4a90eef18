"""Initializes jax_cxl, twice with an error, then three times with success and communication."""

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
        print(f"sum {int(total(np.float32(1)))}", flush=True)
        jax_cxl.shutdown()


if __name__ == "__main__":
    main()
