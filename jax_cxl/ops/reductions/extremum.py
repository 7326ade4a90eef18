"""jax_cxl.pmax and jax_cxl.pmin."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
from jax import lax
from jax.extend import core

from jax_cxl._levels import lower
from jax_cxl._primitives import batching_rules, dtypes, lowering, named_axis
from jax_cxl._primitives.native_enums import Op, ReduceOp


def pmax(
    x: Any,
    axis_name: Hashable | Sequence[Hashable],
    *,
    axis_index_groups: Sequence[Sequence[int]] | None = None,
    levels: bool | None = None,
) -> Any:
    """Takes the maximum of x over all ranks along a named axis.

    Drop-in for `jax.lax.pmax`. Like `jax.lax.pmax` it has no derivative. NaN on any rank gives NaN.

    Args:
      x: array, or pytree of arrays, of any real dtype.
      axis_name: mesh axis, or several.
      axis_index_groups: lists of axis indices, all of the same size and together a
        partition of the axis. Each group has a maximum of its own. By default all ranks are one
        group.
      levels: how ranks of one process take part. True combines them inside the process first, and
        sends less through the pool; False sends all through the pool; None takes what is faster for
        the size (docs/levels.md).

    Returns:
      Arrays of x's shape and dtype. Under check_vma they stop varying over the axis,
      except with axis_index_groups.

    Raises:
      NameError: the axis is not bound, as outside `jax.shard_map`.
      TypeError: a dtype is complex, or not supported, such as float6_e2m3fn.
      ValueError: the groups are not a partition, or `levels=True` for groups without several ranks
        in each process, equally many.

    Example:
      >>> mesh = jax_cxl.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
      >>> largest = jax.shard_map(lambda x: jax_cxl.pmax(x, "i"),
      ...                         mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P())
      >>> jax.jit(largest)(jnp.arange(8))
      Array([6, 7], dtype=int32)
    """
    return _extremum(pmax_p, x, axis_name, axis_index_groups, levels)


def pmin(
    x: Any,
    axis_name: Hashable | Sequence[Hashable],
    *,
    axis_index_groups: Sequence[Sequence[int]] | None = None,
    levels: bool | None = None,
) -> Any:
    """Takes the minimum of x over all ranks along a named axis.

    Drop-in for `jax.lax.pmin`. Like `jax.lax.pmin` it has no derivative. NaN on any rank gives NaN.

    Args:
      x: array, or pytree of arrays, of any real dtype.
      axis_name: mesh axis, or several.
      axis_index_groups: lists of axis indices, all of the same size and together a
        partition of the axis. Each group has a minimum of its own. By default all ranks are one
        group.
      levels: how ranks of one process take part. True combines them inside the process first, and
        sends less through the pool; False sends all through the pool; None takes what is faster for
        the size (docs/levels.md).

    Returns:
      Arrays of x's shape and dtype. Under check_vma they stop varying over the axis,
      except with axis_index_groups.

    Raises:
      NameError: the axis is not bound, as outside `jax.shard_map`.
      TypeError: a dtype is complex, or not supported, such as float6_e2m3fn.
      ValueError: the groups are not a partition, or `levels=True` for groups without several ranks
        in each process, equally many.

    Example:
      >>> mesh = jax_cxl.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
      >>> smallest = jax.shard_map(lambda x: jax_cxl.pmin(x, "i"),
      ...                         mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P())
      >>> jax.jit(smallest)(jnp.arange(8))
      Array([0, 1], dtype=int32)
    """
    return _extremum(pmin_p, x, axis_name, axis_index_groups, levels)


def _extremum(primitive, x, axis_name, axis_index_groups, levels):
    name = primitive.name
    axes = named_axis.axes_of(name, axis_name)
    if not axes:
        return x
    groups = named_axis.groups_of(name, axes, axis_index_groups)

    def bind(leaf):
        # The batching rule over the axis of vmap does not check the dtype, so check it here.
        dtypes.check_real(name, jax.dtypes.result_type(leaf))
        return named_axis.bind_reduction(primitive, leaf, axes, groups, levels)

    return jax.tree.map(bind, x)


def _make_primitive(name: str, reduce_op: ReduceOp, reduce: Callable) -> Any:
    primitive = core.Primitive(name)

    def abstract_eval(x, *, axes, groups, invariant, levels):
        dtypes.check_real(name, x.dtype)
        return named_axis.abstract_result(name, x, axes, invariant=invariant)

    def lower_extremum(ctx, x, *, axes, groups, invariant, levels):
        return lower.collective(
            ctx,
            x,
            name=name,
            op=Op.ALL_REDUCE,
            axes=axes,
            groups=groups,
            reduce_op=reduce_op,
            levels=levels,
        )

    primitive.def_effectful_abstract_eval(abstract_eval)
    lowering.register(primitive, lower_extremum)
    batching_rules.register_reduction(primitive, reduce, lambda x, size: x)
    return primitive


pmax_p = _make_primitive("pmax", ReduceOp.MAX, lax.reduce_max)
pmin_p = _make_primitive("pmin", ReduceOp.MIN, lax.reduce_min)
