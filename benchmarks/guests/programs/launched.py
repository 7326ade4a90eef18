"""A program that leaves it to jax_cxl to connect the processes, as under Slurm or mpirun."""

import jax
import numpy as np

import jax_cxl

jax_cxl.initialize()
mesh = jax_cxl.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
total = jax.jit(
    jax.shard_map(lambda x: jax_cxl.psum(x, "i"), mesh=mesh, in_specs=jax.P(), out_specs=jax.P())
)
print("sum", int(total(np.float32(1))), flush=True)
