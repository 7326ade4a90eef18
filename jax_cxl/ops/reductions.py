"""Reductions whose result all ranks get: jax_cxl.psum and its relatives."""

from collections.abc import Hashable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.interpreters import ad

from jax_cxl._lowering.contract import Op, ReduceOp
from jax_cxl._lowering.levels import primitive as primitives
from jax_cxl._lowering.primitives import arguments, dtypes, named_axis
from jax_cxl._lowering.primitives.documentation import documented
from jax_cxl._lowering.primitives.named_axis import AxisName, GroupLists


@documented()
def psum(
    x: Any, axis_name: AxisName, *, axis_index_groups: GroupLists = None, levels: bool | None = None
) -> Any:
    """Sums x over all ranks along a named axis.

    Drop-in for `jax.lax.psum`. The sum adds the ranks' values in rank order, so that all ranks get
    the same bits; float16, bfloat16 and float8 accumulate in float32 and round once. In levels
    (docs/levels.md), each process first adds the values of its own ranks, and the sums of the
    processes are then added in the same way. A leaf that is not traced (a Python number, a NumPy
    array) is assumed to be equal on all ranks, and is multiplied by the size of the group. So
    `psum(1, "i")` is the size of the axis.

    Args:
      x: array, or pytree of arrays, of any dtype; bool counts as int32.

    Returns:
      Arrays of x's shape and dtype (int32 for bool). Under check_vma they stop varying
      over the axis, except with axis_index_groups.

    Raises:
      TypeError: an axis is an integer.

    Example:
      >>> total = jax.shard_map(lambda x: jax_cxl.psum(x, "i"),
      ...                       mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P())
      >>> jax.jit(total)(jnp.arange(8))
      Array([12, 16], dtype=int32)
    """
    return _reduce(psum_p, x, axis_name, axis_index_groups, levels)


@documented()
def pmean(
    x: Any, axis_name: AxisName, *, axis_index_groups: GroupLists = None, levels: bool | None = None
) -> Any:
    """Takes the mean of x over all ranks along a named axis.

    Drop-in for `jax.lax.pmean`. It is `psum` divided by the size of the group.

    Returns:
      Arrays of x's shape; integers become floating point.

    Example:
      >>> mean = jax.shard_map(lambda x: jax_cxl.pmean(x, "i"),
      ...                      mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P())
      >>> jax.jit(mean)(jnp.arange(8))
      Array([3., 4.], dtype=float32)
    """
    levels = arguments.levels("pmean", levels)
    axes, _, size = named_axis.groups_along("pmean", axis_name, axis_index_groups)
    total = psum(x, axes, axis_index_groups=axis_index_groups, levels=levels)
    return jax.tree.map(lambda leaf: leaf / size, total)


_TEXT = """\
Takes the {what} of x over all ranks along a named axis.

{note}

Args:
  x: array, or pytree of arrays, of {dtypes}.

Returns:
  Arrays of x's shape and dtype. Under check_vma they stop varying over the axis,
  except with axis_index_groups.

Raises:
  TypeError: a dtype is {refused}.

Example:
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
    x: Any, axis_name: AxisName, *, axis_index_groups: GroupLists = None, levels: bool | None = None
) -> Any:
    return _reduce(pmax_p, x, axis_name, axis_index_groups, levels)


@documented(_TEXT, what="minimum", result="Array([0, 1], dtype=int32)", **_EXTREMUM)
def pmin(
    x: Any, axis_name: AxisName, *, axis_index_groups: GroupLists = None, levels: bool | None = None
) -> Any:
    return _reduce(pmin_p, x, axis_name, axis_index_groups, levels)


@documented(_TEXT, what="and", result="Array([3, 4], dtype=int32)", **_BITWISE)
def pand(
    x: Any, axis_name: AxisName, *, axis_index_groups: GroupLists = None, levels: bool | None = None
) -> Any:
    return _reduce(pand_p, x, axis_name, axis_index_groups, levels)


@documented(_TEXT, what="or", result="Array([15, 13], dtype=int32)", **_BITWISE)
def por(
    x: Any, axis_name: AxisName, *, axis_index_groups: GroupLists = None, levels: bool | None = None
) -> Any:
    return _reduce(por_p, x, axis_name, axis_index_groups, levels)


def _reduce(primitive, x, axis_name, axis_index_groups, levels):
    name = primitive.name
    levels = arguments.levels(name, levels)
    axes, groups, size = named_axis.groups_along(name, axis_name, axis_index_groups)
    if not axes:
        return x

    def bind(leaf):
        if primitive is psum_p:
            if not isinstance(leaf, jax.core.Tracer):
                return _times(leaf, size)
            leaf = dtypes.count_bool(leaf)
        # Check the dtype here, because derivatives and the rules of vmap do not check it.
        dtypes.check_reduction(name, primitive.reduce_op, jax.dtypes.result_type(leaf))
        return named_axis.bind_reduction(primitive, leaf, axes, groups, levels)

    return jax.tree.map(bind, x)


def _times(leaf: Any, size: int) -> Any:
    if jax.dtypes.result_type(leaf) == np.bool:
        return jnp.asarray(leaf, np.int32) * np.int32(size)
    if isinstance(leaf, (int, float, complex)):
        return leaf * type(leaf)(size)
    if getattr(leaf, "weak_type", False):
        return leaf * size
    return leaf * np.asarray(size, leaf.dtype)


psum_p = primitives.make("psum", Op.ALL_REDUCE)
pmax_p = primitives.make("pmax", Op.ALL_REDUCE, ReduceOp.MAX)
pmin_p = primitives.make("pmin", Op.ALL_REDUCE, ReduceOp.MIN)
pand_p = primitives.make("pand", Op.ALL_REDUCE, ReduceOp.AND)
por_p = primitives.make("por", Op.ALL_REDUCE, ReduceOp.OR)


def _transpose(ct, x, *, axes, groups, invariant, levels):
    ct = named_axis.vary(ct, axes)
    if invariant:
        return [ct]
    # Without varying types it is unknown whether the cotangents of the ranks are equal. As in
    # jax.lax, they are treated as parts of a sum.
    return [psum_p.bind(ct, axes=axes, groups=groups, invariant=False, levels=levels)]


ad.deflinear2(psum_p, _transpose)

_INDEX_TEXT = """\
Returns the index of the rank whose x is the {what}, the lowest index if several are equal.

Args:
  x: array of any real dtype.
  axis_name: one mesh axis.

Returns:
  An int32 array of x's shape. Under check_vma it does not vary over the axis. An
  element that is NaN on any rank gives 2**31 - 1.

Raises:
  TypeError: several axes, or a dtype is complex.

Example:
  >>> where = jax.shard_map(lambda x: jax_cxl.{name}(x, "i"),
  ...                       mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P())
  >>> jax.jit(where)(jnp.array([0, 7, 1, 6, 2, 5, 3, 4]))
  {result}
"""


@documented(_INDEX_TEXT, what="largest", result="Array([3, 0], dtype=int32)")
def pargmax(x: Any, axis_name: Hashable) -> Any:
    return _first_rank_with("pargmax", pmax, x, axis_name)


@documented(_INDEX_TEXT, what="smallest", result="Array([0, 3], dtype=int32)")
def pargmin(x: Any, axis_name: Hashable) -> Any:
    return _first_rank_with("pargmin", pmin, x, axis_name)


def _first_rank_with(name, extremum, x, axis_name):
    if isinstance(axis_name, (tuple, list)):
        raise TypeError(f"jax_cxl.{name} works over a single axis, got {axis_name}. Pass one name.")
    best = extremum(x, axis_name)
    index = lax.axis_index(axis_name)
    nowhere = jnp.iinfo(index.dtype).max
    return pmin(jnp.where(x == best, index, nowhere), axis_name)
