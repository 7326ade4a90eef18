"""jax_cxl.pscan."""

from collections.abc import Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core
from jax.interpreters import ad

from jax_cxl import _axis, _lowering
from jax_cxl._lowering import ReduceOp


def pscan(
    x: Any, axis_name: Hashable | Sequence[Hashable], *, op: str = "sum", reverse: bool = False
) -> Any:
    """Reduces x over this rank and all before it along a named axis.

    `MPI_Scan`; not `jax.lax.scan`, which is a loop. The reduction takes the ranks' values
    in rank order; float16, bfloat16 and float8 accumulate in float32 and round once.
    Sums differentiate, to sums in the other direction.

    Args:
      x: array, or pytree of arrays, of any dtype that the operation takes; in a sum bool
        counts as int32.
      axis_name: mesh axis, or several in the order in which they count ranks.
      op: "sum", "prod", "min" or "max".
      reverse: reduces over this rank and all behind it.

    Returns:
      Arrays of x's shape and dtype (int32 for the sum of bool).

    Raises:
      NameError: the axis is not bound, as outside `jax.shard_map`.
      TypeError: a dtype is not supported, such as float6_e2m3fn, or has no such operation.
      ValueError: there is no such operation.

    Example:
      >>> mesh = jax.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
      >>> prefix = jax.shard_map(lambda x: jax_cxl.pscan(x, "i"),
      ...                        mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P("i"))
      >>> jax.jit(prefix)(jnp.arange(1, 5))
      Array([ 1,  3,  6, 10], dtype=int32)
    """
    axes = _axis.axes_of("pscan", axis_name)
    kind = reduce_op_of("pscan", op)

    def scan(leaf):
        leaf = operand("pscan", leaf, kind, axes)
        return pscan_p.bind(leaf, axes=axes, op=kind, reverse=reverse) if axes else leaf

    return jax.tree.map(scan, x)


pscan_p = core.Primitive("pscan")


def reduce_op_of(name: str, op: str) -> ReduceOp:
    """Returns the reduction that a scan's argument `op` names."""
    if not isinstance(op, str) or op.upper() not in ReduceOp.__members__ or op != op.lower():
        raise ValueError(f"jax_cxl.{name}: op={op!r} must be 'sum', 'prod', 'min' or 'max'.")
    return ReduceOp[op.upper()]


def operand(name: str, leaf: Any, op: ReduceOp, axes: _axis.Axes) -> Any:
    """Returns the operand of a scan, checked and varying."""
    if op is ReduceOp.SUM:
        leaf = _axis.count_bool(leaf)
    if op in (ReduceOp.MIN, ReduceOp.MAX):
        _axis.check_real(name, jax.dtypes.result_type(leaf))
    return _axis.vary(leaf, axes)


def register_rules(primitive: Any, exclusive: bool, transpose: Any) -> None:
    """Registers what the inclusive and the exclusive scan have in common."""
    name = primitive.name
    plan = _lowering.Op.EXSCAN if exclusive else _lowering.Op.SCAN

    def abstract_eval(x, *, axes, op, reverse):
        return _axis.abstract_result(name, x, axes)

    def lower(ctx, x, *, axes, op, reverse):
        return _lowering.collective(
            ctx, x, name=name, op=plan, axes=axes, reduce_op=op, reverse=reverse
        )

    def jvp(primals, tangents, *, op, **params):
        if op is not ReduceOp.SUM:
            raise NotImplementedError(
                f"jax_cxl.{name} with op={op.name.lower()!r} has no derivative: only sums have."
            )
        return linear_jvp(primals, tangents, op=op, **params)

    def batch_other_axis(x, d, **params):
        return primitive.bind(x, **params), d

    def batch_own_axis(x, d, axis_size, *, op, reverse, **params):
        if d is None:
            x, d = lax.broadcast(x, (axis_size,)), 0
        y = _cumulate(x, d, op, reverse)
        # The first rank of an exclusive scan has nothing to reduce; it gets something.
        return (jnp.roll(y, -1 if reverse else 1, d) if exclusive else y), d

    primitive.def_effectful_abstract_eval(abstract_eval)
    _lowering.register(primitive, lower)
    ad.deflinear2(primitive, transpose)
    linear_jvp = ad.primitive_jvps[primitive]
    ad.primitive_jvps[primitive] = jvp
    _axis.register_batching(primitive, batch_other_axis, batch_own_axis)


def _cumulate(x, dim, op, reverse):
    cumulate = {
        ReduceOp.SUM: lax.cumsum,
        ReduceOp.PROD: lax.cumprod,
        ReduceOp.MIN: lax.cummin,
        ReduceOp.MAX: lax.cummax,
    }[op]
    wide = x
    if x.dtype == np.bool:
        wide = x.astype(np.int32)
    elif jnp.issubdtype(x.dtype, jnp.floating) and x.dtype.itemsize < 4:
        wide = x.astype(np.float32)
    return cumulate(wide, dim, reverse=reverse).astype(x.dtype)


def _transpose(ct, x, *, axes, op, reverse):
    return [pscan_p.bind(_axis.vary(ct, axes), axes=axes, op=op, reverse=not reverse)]


register_rules(pscan_p, False, _transpose)
