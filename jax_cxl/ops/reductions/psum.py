"""jax_cxl.psum."""

from collections.abc import Hashable, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.interpreters import ad

from jax_cxl import _compat
from jax_cxl._lowering.contract import Op
from jax_cxl._lowering.levels import choose
from jax_cxl._lowering.primitives import arguments, batching_rules, dtypes, lowering, named_axis


def psum(
    x: Any,
    axis_name: Hashable | Sequence[Hashable],
    *,
    axis_index_groups: Sequence[Sequence[int]] | None = None,
    levels: bool | None = None,
) -> Any:
    """Sums x over all ranks along a named axis.

    Drop-in for `jax.lax.psum`. The sum adds the ranks' values in rank order, so that all ranks get
    the same bits; float16, bfloat16 and float8 accumulate in float32 and round once. In levels, the
    sums of the processes are added in the same way. A leaf that is not traced (a Python number, a
    NumPy array) is assumed to be equal on all ranks, and is multiplied by the size of the group:
    `psum(1, "i")` is the size of the axis.

    Args:
      x: array, or pytree of arrays, of any dtype; bool counts as int32.
      axis_name: mesh axis, or several.
      axis_index_groups: lists of axis indices, all of the same size and together a
        partition of the axis. Each group has a sum of its own. By default all ranks are one group.
      levels: True combines the data of each process before they go through the pool, False
        does not. None chooses the faster way for the size (docs/levels.md).

    Returns:
      Arrays of x's shape and dtype (int32 for bool). Under check_vma they stop varying
      over the axis, except with axis_index_groups.

    Raises:
      NameError: the axis is not bound, as outside `jax.shard_map`.
      TypeError: a dtype is not supported, such as float6_e2m3fn, or an axis is an integer.
      ValueError: the groups are not a partition, or `levels=True` for groups that do not have the
        same number of ranks, at least two, in each process.

    Example:
      >>> mesh = jax_cxl.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
      >>> total = jax.shard_map(lambda x: jax_cxl.psum(x, "i"),
      ...                       mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P())
      >>> jax.jit(total)(jnp.arange(8))
      Array([12, 16], dtype=int32)
    """
    levels = arguments.levels("psum", levels)
    axes = named_axis.axes_of("psum", axis_name)
    if not axes:
        return x
    groups = named_axis.groups_of("psum", axes, axis_index_groups)

    def total(leaf):
        leaf = dtypes.count_bool(leaf)
        if not isinstance(leaf, jax.core.Tracer):
            return _times(leaf, named_axis.group_size(axes, groups))
        return named_axis.bind_reduction(psum_p, leaf, axes, groups, levels)

    return jax.tree.map(total, x)


psum_p = _compat.tracing.Primitive("psum")


def _times(leaf: Any, size: int) -> Any:
    if isinstance(leaf, (int, float, complex)):
        return leaf * type(leaf)(size)
    return leaf * np.asarray(size, leaf.dtype)


def _abstract_eval(x, *, axes, groups, invariant, levels):
    return named_axis.abstract_result("psum", x, axes, invariant=invariant)


def _lower(ctx, x, *, axes, groups, invariant, levels):
    return choose.collective(
        ctx, x, name="psum", op=Op.ALL_REDUCE, axes=axes, groups=groups, levels=levels
    )


def _transpose(ct, x, *, axes, groups, invariant, levels):
    if invariant:
        return [named_axis.vary(ct, axes)]
    # Without varying types it is unknown whether the cotangents of the ranks are equal. As in
    # jax.lax, they are treated as parts of a sum.
    ct = named_axis.vary(ct, axes)
    return [psum_p.bind(ct, axes=axes, groups=groups, invariant=False, levels=levels)]


psum_p.def_effectful_abstract_eval(_abstract_eval)
lowering.register(psum_p, _lower)
ad.deflinear2(psum_p, _transpose)
batching_rules.register_reduction(
    psum_p, lax.reduce_sum, lambda x, size: lax.mul(x, lax.full_like(x, size))
)
