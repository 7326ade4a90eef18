"""The program that jobs of this folder run: the sum of all ranks."""

from collections.abc import Callable

import jax

import jax_cxl


def compile_sum() -> Callable[[], jax.Array]:
    """Returns a program without arguments, whose result is the sum of all ranks."""
    mesh = jax_cxl.make_mesh(
        (jax.device_count(),), ("i",), axis_types=(jax.sharding.AxisType.Auto,)
    )

    def total() -> jax.Array:
        return jax_cxl.psum(jax.lax.axis_index("i"), "i")

    return jax.jit(jax.shard_map(total, mesh=mesh, in_specs=(), out_specs=jax.P()))
