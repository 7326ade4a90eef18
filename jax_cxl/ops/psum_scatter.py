"""jax_cxl.psum_scatter. It and all_gather are each other's transpose."""

from typing import Any

import jax
from jax import lax
from jax.interpreters import ad

from jax_cxl._lowering.contract import Op, ReduceOp
from jax_cxl._lowering.levels import primitive
from jax_cxl._lowering.primitives import arguments, dimensions, dtypes, named_axis
from jax_cxl._lowering.primitives.documentation import documented
from jax_cxl._lowering.primitives.named_axis import AxisName, GroupLists
from jax_cxl.ops.all_gather import all_gather_p


@documented()
def psum_scatter(
    x: Any,
    axis_name: AxisName,
    *,
    scatter_dimension: int = 0,
    axis_index_groups: GroupLists = None,
    tiled: bool = False,
    levels: bool | None = None,
) -> Any:
    """Sums x over all ranks along a named axis, and gives each rank a part of the sum.

    Drop-in for `jax.lax.psum_scatter`; differentiates to `all_gather`. The sum adds the ranks'
    values in rank order; float16, bfloat16 and float8 accumulate in float32 and round once. In
    levels (docs/levels.md), each process first adds the values of its own ranks. The sums of the
    processes are then added in the same way.

    Args:
      scatter_dimension: dimension of x that is divided among the ranks.
      tiled: if False, the dimension must have the size of the group, and is removed. If True, its
        size must be a multiple of the size of the group, and is divided by it.

    Returns:
      Arrays of x's dtype. For x of shape (a, n * b), n ranks, scatter_dimension=1 and
      tiled=True, the shape is (a, b).

    Raises:
      TypeError: a dtype is bool.
      ValueError: the scattered dimension does not fit the size of the group.

    Example:
      >>> scatter = jax.shard_map(lambda x: jax_cxl.psum_scatter(x, "i", tiled=True),
      ...                         mesh=mesh, in_specs=jax.P(), out_specs=jax.P("i"))
      >>> jax.jit(scatter)(jnp.arange(8))
      Array([ 0,  4,  8, 12, 16, 20, 24, 28], dtype=int32)
    """
    tiled = arguments.boolean("psum_scatter", "tiled", tiled)
    levels = arguments.levels("psum_scatter", levels)
    axes, groups, size = named_axis.groups_along("psum_scatter", axis_name, axis_index_groups)
    if not axes:
        return x

    def scatter(leaf):
        dim = dimensions.check_divided(
            "psum_scatter", "scatter_dimension", scatter_dimension, leaf, size, tiled=tiled
        )
        dtypes.check_reduction("psum_scatter", ReduceOp.SUM, jax.dtypes.result_type(leaf))
        leaf = named_axis.vary(leaf, axes)
        leaf = dimensions.split(leaf, dim, size) if tiled else leaf
        return psum_scatter_p.bind(
            leaf, axes=axes, groups=groups, size=size, operand_blocks=dim, levels=levels
        )

    return jax.tree.map(scatter, x)


psum_scatter_p = primitive.make("psum_scatter", Op.REDUCE_SCATTER)


def _transpose(ct, x, *, axes, operand_blocks, **params):
    ct = named_axis.vary(ct, axes)
    return [
        all_gather_p.bind(ct, axes=axes, result_blocks=operand_blocks, invariant=False, **params)
    ]


def _transpose_all_gather(ct, x, *, axes, result_blocks, invariant, **params):
    if invariant:
        # All ranks hold the same cotangent of the whole result. Each rank takes its own part.
        return [lax.dynamic_index_in_dim(ct, lax.axis_index(axes), result_blocks, keepdims=False)]
    ct = named_axis.vary(ct, axes)
    return [psum_scatter_p.bind(ct, axes=axes, operand_blocks=result_blocks, **params)]


ad.deflinear2(psum_scatter_p, _transpose)
ad.deflinear2(all_gather_p, _transpose_all_gather)
