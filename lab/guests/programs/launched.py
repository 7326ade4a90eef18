"""A program that does not call jax.distributed: jax_cxl connects its processes, as under mpirun."""

import jax
import numpy as np

import jax_cxl

jax_cxl.initialize()
mesh = jax_cxl.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
total = jax.jit(
    jax.shard_map(lambda x: jax_cxl.psum(x, "i"), mesh=mesh, in_specs=jax.P(), out_specs=jax.P())
)
print("sum", int(total(np.float32(1))), flush=True)
