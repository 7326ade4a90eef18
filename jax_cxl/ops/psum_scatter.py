"""jax_cxl.psum_scatter."""

from collections.abc import Hashable, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.extend import core
from jax.interpreters import ad

from jax_cxl import _axis, _lowering
from jax_cxl.ops.all_gather import all_gather_p


def psum_scatter(
    x: Any,
    axis_name: Hashable | Sequence[Hashable],
    *,
    scatter_dimension: int = 0,
    axis_index_groups: Sequence[Sequence[int]] | None = None,
    tiled: bool = False,
) -> Any:
    """Sums x over all ranks along a named axis and leaves each rank its part of the
    sum.

    Drop-in for `jax.lax.psum_scatter`; differentiates to `all_gather`. The sum adds the
    ranks' values in rank order; float16, bfloat16 and float8 accumulate in float32 and
    round once.

    Args:
      x: array, or pytree of arrays, of any dtype.
      axis_name: mesh axis, or several in the order in which they count ranks.
      scatter_dimension: dimension of x that is divided among the ranks.
      axis_index_groups: lists of axis indices, all of the same size and together a
        partition of the axis; each sums on its own. By default one group of all ranks.
      tiled: False wants this dimension to have the group's size, and removes it; True
        wants a multiple of the group's size, and divides it.

    Returns:
      Arrays of x's dtype. For x of shape (a, n * b), n ranks, scatter_dimension=1 and
      tiled=True, the shape is (a, b).

    Raises:
      NameError: the axis is not bound, as outside `jax.shard_map`.
      TypeError: a dtype is not supported, such as float6_e2m3fn, or bool.
      ValueError: the scattered dimension does not fit the group's size, or the groups
        are no partition.

    Example:
      >>> mesh = jax.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
      >>> scatter = jax.shard_map(lambda x: jax_cxl.psum_scatter(x, "i", tiled=True),
      ...                         mesh=mesh, in_specs=jax.P(), out_specs=jax.P("i"))
      >>> jax.jit(scatter)(jnp.arange(8))
      Array([ 0,  4,  8, 12, 16, 20, 24, 28], dtype=int32)
    """
    axes = _axis.axes_of("psum_scatter", axis_name)
    if not axes:
        return x
    groups = _axis.groups_of("psum_scatter", axes, axis_index_groups)
    size = _axis.group_size(axes, groups)

    def scatter(leaf):
        dim = _axis.dimension("psum_scatter", "scatter_dimension", scatter_dimension, np.ndim(leaf))
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
        # Here too: no rule of an axis of vmap looks at the dtype.
        _axis.check_sum("psum_scatter", jax.dtypes.result_type(leaf))
        leaf = _axis.vary(leaf, axes)
        leaf = _axis.split(leaf, dim, size) if tiled else leaf
        return psum_scatter_p.bind(leaf, axes=axes, groups=groups, size=size, dim=dim)

    return jax.tree.map(scatter, x)


# Removes dimension `dim` of size `size`; `tiled` is a reshape around it.
psum_scatter_p = core.Primitive("psum_scatter")


def _abstract_eval(x, *, axes, groups, size, dim):
    _axis.check_sum("psum_scatter", x.dtype)
    shape = (*x.shape[:dim], *x.shape[dim + 1 :])
    return _axis.abstract_result("psum_scatter", x, axes, shape=shape)


def _lower(ctx, x, *, axes, groups, size, dim):
    return _lowering.collective(
        ctx,
        x,
        name="psum_scatter",
        op=_lowering.Op.REDUCE_SCATTER,
        axes=axes,
        groups=groups,
        operand_blocks=dim,
    )


def _transpose(ct, x, *, axes, groups, size, dim):
    ct = _axis.vary(ct, axes)
    return [all_gather_p.bind(ct, axes=axes, groups=groups, size=size, dim=dim, invariant=False)]


def _batch_other_axis(x, d, *, dim, **params):
    if d <= dim:
        return psum_scatter_p.bind(x, dim=dim + 1, **params), d
    # Dimension `dim` goes away in front of the batch dimension.
    return psum_scatter_p.bind(x, dim=dim, **params), d - 1


def _batch_own_axis(x, d, axis_size, *, dim, **params):
    if d is None:
        return lax.mul(x, lax.full_like(x, axis_size)), dim
    return _axis.reduce_in_one_rounding(lax.reduce_sum, x, (d,)), dim


psum_scatter_p.def_effectful_abstract_eval(_abstract_eval)
_lowering.register(psum_scatter_p, _lower)
ad.deflinear2(psum_scatter_p, _transpose)
_axis.register_batching(psum_scatter_p, _batch_other_axis, _batch_own_axis)
