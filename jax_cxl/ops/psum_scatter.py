"""jax_cxl.psum_scatter."""

from collections.abc import Hashable, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax

from jax_cxl import _compat
from jax_cxl._lowering.contract import Op, ReduceOp
from jax_cxl._lowering.levels import choose
from jax_cxl._lowering.primitives import (
    arguments,
    batching_rules,
    dimensions,
    dtypes,
    lowering,
    named_axis,
)


def psum_scatter(
    x: Any,
    axis_name: Hashable | Sequence[Hashable],
    *,
    scatter_dimension: int = 0,
    axis_index_groups: Sequence[Sequence[int]] | None = None,
    tiled: bool = False,
    levels: bool | None = None,
) -> Any:
    """Sums x over all ranks along a named axis, and gives each rank a part of the sum.

    Drop-in for `jax.lax.psum_scatter`; differentiates to `all_gather`. The sum adds the
    ranks' values in rank order; float16, bfloat16 and float8 accumulate in float32 and
    round once. In levels, the sums of the processes are added in the same way.

    Args:
      x: array, or pytree of arrays, of any dtype.
      axis_name: mesh axis, or several in the order in which they count ranks.
      scatter_dimension: dimension of x that is divided among the ranks.
      axis_index_groups: lists of axis indices, all of the same size and together a
        partition of the axis. Each group has a sum of its own. By default all ranks are one group.
      tiled: if False, the dimension must have the size of the group, and is removed. If True, its
        size must be a multiple of the size of the group, and is divided by it.
      levels: True combines the data of each process before they go through the pool, False
        does not. None chooses the faster way for the size (docs/levels.md).

    Returns:
      Arrays of x's dtype. For x of shape (a, n * b), n ranks, scatter_dimension=1 and
      tiled=True, the shape is (a, b).

    Raises:
      NameError: the axis is not bound, as outside `jax.shard_map`.
      TypeError: a dtype is not supported, such as float6_e2m3fn, or bool.
      ValueError: the scattered dimension does not fit the size of the group, or the groups are not
        a partition, or `levels=True` for groups that do not have the same number of ranks, at least
        two, in each process.

    Example:
      >>> mesh = jax_cxl.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
      >>> scatter = jax.shard_map(lambda x: jax_cxl.psum_scatter(x, "i", tiled=True),
      ...                         mesh=mesh, in_specs=jax.P(), out_specs=jax.P("i"))
      >>> jax.jit(scatter)(jnp.arange(8))
      Array([ 0,  4,  8, 12, 16, 20, 24, 28], dtype=int32)
    """
    tiled = arguments.boolean("psum_scatter", "tiled", tiled)
    levels = arguments.levels("psum_scatter", levels)
    axes = named_axis.axes_of("psum_scatter", axis_name)
    if not axes:
        return x
    groups = named_axis.groups_of("psum_scatter", axes, axis_index_groups)
    size = named_axis.group_size(axes, groups)

    def scatter(leaf):
        dim = dimensions.check(
            "psum_scatter", "scatter_dimension", scatter_dimension, np.ndim(leaf)
        )
        length = np.shape(leaf)[dim]
        if tiled and length % size:
            raise ValueError(
                f"jax_cxl.psum_scatter: the size {length} of dimension {dim} must be"
                f" divisible by the size {size} of the group when tiled=True."
            )
        if not tiled and length != size:
            raise ValueError(
                f"jax_cxl.psum_scatter: the size {length} of dimension {dim} must be"
                f" the size {size} of the group. Pass tiled=True to divide it."
            )
        # The batching rule over the axis of vmap does not check the dtype, so check it here.
        dtypes.check_reduction("psum_scatter", ReduceOp.SUM, jax.dtypes.result_type(leaf))
        leaf = named_axis.vary(leaf, axes)
        leaf = dimensions.split(leaf, dim, size) if tiled else leaf
        return psum_scatter_p.bind(
            leaf, axes=axes, groups=groups, size=size, dim=dim, levels=levels
        )

    return jax.tree.map(scatter, x)


# Removes dimension `dim` of size `size`; `tiled` is a reshape around it.
psum_scatter_p = _compat.tracing.Primitive("psum_scatter")


def _abstract_eval(x, *, axes, groups, size, dim, levels):
    dtypes.check_reduction("psum_scatter", ReduceOp.SUM, x.dtype)
    shape = (*x.shape[:dim], *x.shape[dim + 1 :])
    return named_axis.abstract_result("psum_scatter", x, axes, shape=shape)


def _lower(ctx, x, *, axes, groups, size, dim, levels):
    return choose.collective(
        ctx,
        x,
        name="psum_scatter",
        op=Op.REDUCE_SCATTER,
        axes=axes,
        groups=groups,
        operand_blocks=dim,
        levels=levels,
    )


def _batch_other_axis(x, d, *, dim, **params):
    if d <= dim:
        return psum_scatter_p.bind(x, dim=dim + 1, **params), d
    # Dimension `dim`, which is removed, comes before the batch dimension.
    return psum_scatter_p.bind(x, dim=dim, **params), d - 1


def _batch_own_axis(x, d, axis_size, *, dim, **params):
    if d is None:
        return lax.mul(x, lax.full_like(x, axis_size)), dim
    return dtypes.reduce_in_one_rounding(lax.reduce_sum, x, (d,)), dim


psum_scatter_p.def_effectful_abstract_eval(_abstract_eval)
lowering.register(psum_scatter_p, _lower)
batching_rules.register(psum_scatter_p, _batch_other_axis, _batch_own_axis)
