"""jax_cxl.pmax, pmin, pand and por: reductions in which a value may take part more than once."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax

from jax_cxl import _compat
from jax_cxl._lowering.contract import Op, ReduceOp
from jax_cxl._lowering.levels import choose
from jax_cxl._lowering.primitives import arguments, batching_rules, dtypes, lowering, named_axis
from jax_cxl._lowering.primitives.documentation import documented

_TEXT = """\
Takes the {what} of x over all ranks along a named axis.

{note}

Args:
  x: array, or pytree of arrays, of {dtypes}.
  axis_name: mesh axis, or several.
  axis_index_groups: lists of axis indices, all of the same size and together a
    partition of the axis. Each group has a result of its own. By default all ranks are one
    group.
  levels: True combines the data of each process before they go through the pool, False
    does not. None chooses the faster way for the size (docs/levels.md).

Returns:
  Arrays of x's shape and dtype. Under check_vma they stop varying over the axis,
  except with axis_index_groups.

Raises:
  NameError: the axis is not bound, as outside `jax.shard_map`.
  TypeError: a dtype is {refused}, or not supported, such as float6_e2m3fn.
  ValueError: the groups are not a partition, or `levels=True` for groups that do not have the same
    number of ranks, at least two, in each process.

Example:
  >>> mesh = jax_cxl.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
  >>> reduced = jax.shard_map(lambda x: jax_cxl.{name}(x, "i"),
  ...                         mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P())
  >>> jax.jit(reduced)({example})
  {result}
"""

_EXTREMUM = {
    "note": "Drop-in for `jax.lax.{name}`. Like `jax.lax.{name}` it has no derivative. NaN on any"
    " rank gives NaN.",
    "dtypes": "any real dtype",
    "refused": "complex",
    "example": "jnp.arange(8)",
}
_BITWISE = {
    "note": "As in `jax.lax.bitwise_{what}`, it is logical for bool, and bitwise for integers.\n"
    "It has no derivative.",
    "dtypes": "bool or integers",
    "refused": "neither bool nor an integer",
    "example": "jnp.array([3, 5, 7, 12, 3, 4, 11, 4])",
}


@documented(_TEXT, what="maximum", result="Array([6, 7], dtype=int32)", **_EXTREMUM)
def pmax(
    x: Any,
    axis_name: Hashable | Sequence[Hashable],
    *,
    axis_index_groups: Sequence[Sequence[int]] | None = None,
    levels: bool | None = None,
) -> Any:
    return _reduce(pmax_p, x, axis_name, axis_index_groups, levels)


@documented(_TEXT, what="minimum", result="Array([0, 1], dtype=int32)", **_EXTREMUM)
def pmin(
    x: Any,
    axis_name: Hashable | Sequence[Hashable],
    *,
    axis_index_groups: Sequence[Sequence[int]] | None = None,
    levels: bool | None = None,
) -> Any:
    return _reduce(pmin_p, x, axis_name, axis_index_groups, levels)


@documented(_TEXT, what="and", result="Array([3, 4], dtype=int32)", **_BITWISE)
def pand(
    x: Any,
    axis_name: Hashable | Sequence[Hashable],
    *,
    axis_index_groups: Sequence[Sequence[int]] | None = None,
    levels: bool | None = None,
) -> Any:
    return _reduce(pand_p, x, axis_name, axis_index_groups, levels)


@documented(_TEXT, what="or", result="Array([15, 13], dtype=int32)", **_BITWISE)
def por(
    x: Any,
    axis_name: Hashable | Sequence[Hashable],
    *,
    axis_index_groups: Sequence[Sequence[int]] | None = None,
    levels: bool | None = None,
) -> Any:
    return _reduce(por_p, x, axis_name, axis_index_groups, levels)


def _reduce(primitive, x, axis_name, axis_index_groups, levels):
    name = primitive.name
    levels = arguments.levels(name, levels)
    axes = named_axis.axes_of(name, axis_name)
    if not axes:
        return x
    groups = named_axis.groups_of(name, axes, axis_index_groups)

    def bind(leaf):
        # The batching rule over the axis of vmap does not check the dtype, so check it here.
        dtypes.check_reduction(name, _REDUCTIONS[primitive], jax.dtypes.result_type(leaf))
        return named_axis.bind_reduction(primitive, leaf, axes, groups, levels)

    return jax.tree.map(bind, x)


_REDUCTIONS: dict[Any, ReduceOp] = {}


def _make_primitive(name: str, reduce_op: ReduceOp, reduce: Callable) -> Any:
    primitive = _compat.tracing.Primitive(name)
    _REDUCTIONS[primitive] = reduce_op

    def abstract_eval(x, *, axes, groups, invariant, levels):
        dtypes.check_reduction(name, reduce_op, x.dtype)
        return named_axis.abstract_result(name, x, axes, invariant=invariant)

    def lower_reduction(ctx, x, *, axes, groups, invariant, levels):
        return choose.collective(
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
    lowering.register(primitive, lower_reduction)
    batching_rules.register_reduction(primitive, reduce, lambda x, size: x)
    return primitive


def _of_bytes(reduce: Callable) -> Callable:
    """Returns a reduction that also accepts integers of less than a byte."""

    def wider(x, dims):
        if str(x.dtype) in dtypes.PACKED_DTYPES:
            return reduce(x.astype(np.int8), dims).astype(x.dtype)
        return reduce(x, dims)

    return wider


pmax_p = _make_primitive("pmax", ReduceOp.MAX, lax.reduce_max)
pmin_p = _make_primitive("pmin", ReduceOp.MIN, lax.reduce_min)
pand_p = _make_primitive("pand", ReduceOp.AND, _of_bytes(lax.reduce_and))
por_p = _make_primitive("por", ReduceOp.OR, _of_bytes(lax.reduce_or))
