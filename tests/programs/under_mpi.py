"""Sums over the processes, under any launcher. Prints process, number of processes and sum."""

import jax
import jax.numpy as jnp

import jax_cxl

jax_cxl.initialize()
mesh = jax.make_mesh((jax.device_count(),), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
total = jax.shard_map(
    lambda x: jax_cxl.psum(x, "i"), mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P()
)
found = jax.jit(total)(jnp.arange(float(jax.device_count())))
print(f"{jax.process_index()}:{jax.process_count()}:{float(found[0])}\n", end="", flush=True)
