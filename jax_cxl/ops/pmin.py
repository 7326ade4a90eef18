"""jax_cxl.pmin."""

from collections.abc import Hashable, Sequence
from typing import Any

import jax
from jax import lax
from jax.extend import core

from jax_cxl import _axis, _lowering


def pmin(
    x: Any,
    axis_name: Hashable | Sequence[Hashable],
    *,
    axis_index_groups: Sequence[Sequence[int]] | None = None,
) -> Any:
    """Takes the minimum of x over all ranks along a named axis.

    Drop-in for `jax.lax.pmin`, and like it not differentiable. NaN on any rank gives
    NaN.

    Args:
      x: array, or pytree of arrays, of any real dtype.
      axis_name: mesh axis, or several.
      axis_index_groups: lists of axis indices, all of the same size and together a
        partition of the axis; each takes its own minimum. By default one group of all
        ranks.

    Returns:
      Arrays of x's shape and dtype. Under check_vma they stop varying over the axis,
      except with axis_index_groups.

    Raises:
      NameError: the axis is not bound, as outside `jax.shard_map`.
      TypeError: a dtype is complex, or not supported, such as float6_e2m3fn.
      ValueError: the groups are no partition.

    Example:
      >>> mesh = jax.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
      >>> smallest = jax.shard_map(lambda x: jax_cxl.pmin(x, "i"),
      ...                         mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P())
      >>> jax.jit(smallest)(jnp.arange(8))
      Array([0, 1], dtype=int32)
    """
    axes = _axis.axes_of("pmin", axis_name)
    if not axes:
        return x
    groups = _axis.groups_of("pmin", axes, axis_index_groups)

    def bind(leaf):
        # Here too: no rule of an axis of vmap looks at the dtype.
        _axis.check_real("pmin", jax.dtypes.result_type(leaf))
        return _axis.bind_reduction(pmin_p, leaf, axes, groups)

    return jax.tree.map(bind, x)


pmin_p = core.Primitive("pmin")


def _abstract_eval(x, *, axes, groups, invariant):
    _axis.check_real("pmin", x.dtype)
    return _axis.abstract_result("pmin", x, axes, invariant=invariant)


def _lower(ctx, x, *, axes, groups, invariant):
    return _lowering.collective(
        ctx,
        x,
        name="pmin",
        op=_lowering.Op.ALL_REDUCE,
        axes=axes,
        groups=groups,
        reduce_op=_lowering.ReduceOp.MIN,
    )


pmin_p.def_effectful_abstract_eval(_abstract_eval)
_lowering.register(pmin_p, _lower)
_axis.register_reduction_batching(pmin_p, lax.reduce_min, lambda x, size: x)
