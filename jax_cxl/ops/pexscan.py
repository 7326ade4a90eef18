"""jax_cxl.pexscan."""

from collections.abc import Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core

from jax_cxl import _axis
from jax_cxl._lowering import ReduceOp
from jax_cxl.ops.pscan import operand, reduce_op_of, register_rules


def pexscan(
    x: Any, axis_name: Hashable | Sequence[Hashable], *, op: str = "sum", reverse: bool = False
) -> Any:
    """Reduces x over all ranks before this one along a named axis.

    `MPI_Exscan`, with a defined result on the first rank. The reduction takes the ranks'
    values in rank order; float16, bfloat16 and float8 accumulate in float32 and round once.
    Sums differentiate, to sums in the other direction.

    Args:
      x: array, or pytree of arrays, of any dtype that the operation takes; in a sum bool
        counts as int32.
      axis_name: mesh axis, or several in the order in which they count ranks.
      op: "sum", "prod", "min" or "max".
      reverse: reduces over all ranks behind this one.

    Returns:
      Arrays of x's shape and dtype (int32 for the sum of bool). The first rank, or the last
      one in reverse, gets the neutral element: 0, 1, or the dtype's largest or smallest
      value (infinities where it has them).

    Raises:
      NameError: the axis is not bound, as outside `jax.shard_map`.
      TypeError: a dtype is not supported, such as float6_e2m3fn, or has no such operation.
      ValueError: there is no such operation.

    Example:
      >>> mesh = jax.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
      >>> offset = jax.shard_map(lambda x: jax_cxl.pexscan(x, "i"),
      ...                        mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P("i"))
      >>> jax.jit(offset)(jnp.arange(1, 5))
      Array([0, 1, 3, 6], dtype=int32)
    """
    axes = _axis.axes_of("pexscan", axis_name)
    kind = reduce_op_of("pexscan", op)

    def scan(leaf):
        leaf = operand("pexscan", leaf, kind, axes)
        out = pexscan_p.bind(leaf, axes=axes, op=kind, reverse=reverse) if axes else leaf
        return _fill_first(out, axes, reverse, _neutral(kind, out.dtype))

    return jax.tree.map(scan, x)


# The result is undefined on the first rank, or in reverse on the last one.
pexscan_p = core.Primitive("pexscan")


def _fill_first(out, axes, reverse, value):
    first = lax.axis_size(axes) - 1 if reverse else 0
    return jnp.where(lax.axis_index(axes) == first, jnp.full_like(out, value), out)


def _neutral(op, dtype):
    if op in (ReduceOp.SUM, ReduceOp.PROD):
        return np.asarray(op is ReduceOp.PROD, dtype)
    least = op is ReduceOp.MAX
    if dtype == np.bool:
        return np.asarray(not least)
    if jnp.issubdtype(dtype, jnp.integer):
        info = jnp.iinfo(dtype)
        return np.asarray(info.min if least else info.max, dtype)
    infinity = np.asarray(-np.inf if least else np.inf).astype(dtype)
    if np.isinf(infinity.astype(np.float64)):
        return infinity
    floats = jnp.finfo(dtype)
    return np.asarray(floats.min if least else floats.max).astype(dtype)


def _transpose(ct, x, *, axes, op, reverse):
    ct = pexscan_p.bind(_axis.vary(ct, axes), axes=axes, op=op, reverse=not reverse)
    return [_fill_first(ct, axes, not reverse, _neutral(op, ct.dtype))]


register_rules(pexscan_p, True, _transpose)
