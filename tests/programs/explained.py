"""A step with a collective of jax_cxl and one of jax.lax."""

import jax
import jax.numpy as jnp

import jax_cxl

jax_cxl.initialize()


@jax.jit
def step(x):
    mesh = jax.make_mesh((jax.device_count(),), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    both = jax.shard_map(
        lambda x: jax_cxl.psum(x, "i") + jax.lax.pmax(x, "i"),
        mesh=mesh,
        in_specs=jax.P("i"),
        out_specs=jax.P(),
    )
    return both(x)


step(jnp.arange(8.0)).block_until_ready()
