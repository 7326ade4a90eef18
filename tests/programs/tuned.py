"""Checks collectives under JAX_CXL_TUNING. An argument is the table of processes other than 0."""

import os
import sys

import jax
import numpy as np
from jax.sharding import AxisType

import jax_cxl

_SIZES = (1, 1000, 100_001)


def main(other=None):
    if other is not None and os.environ["JAX_CXL_LAUNCH_RANK"] != "0":
        os.environ["JAX_CXL_TUNING"] = other
    jax_cxl.initialize()
    ranks, rank = jax.process_count(), jax.process_index()
    mesh = jax_cxl.make_mesh((ranks,), ("i",), axis_types=(AxisType.Auto,))

    def both(x):
        return jax_cxl.psum(x, "i"), jax_cxl.all_gather(x, "i", tiled=True)

    step = jax.jit(
        jax.shard_map(both, mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P("i"), check_vma=False)
    )
    for size in _SIZES:
        whole = np.arange(ranks * size, dtype=np.int32).reshape(ranks, size)
        x = jax.make_array_from_process_local_data(
            jax.NamedSharding(mesh, jax.P("i")), whole[rank], (ranks * size,)
        )
        total, joined = (np.asarray(y.addressable_shards[0].data) for y in step(x))
        np.testing.assert_array_equal(total, whole.sum(axis=0))
        np.testing.assert_array_equal(joined, whole.ravel())
    print("right", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
