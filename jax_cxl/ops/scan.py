"""jax_cxl.pscan and jax_cxl.pexscan: reductions over the ranks up to this one."""

from collections.abc import Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.interpreters import ad

from jax_cxl import _compat
from jax_cxl._lowering.contract import Op, ReduceOp
from jax_cxl._lowering.primitives import arguments, batching_rules, dtypes, lowering, named_axis
from jax_cxl._lowering.primitives.documentation import documented

_TEXT = """\
Reduces x over {which} along a named axis.

{mpi} The reduction takes the ranks' values
in rank order; float16, bfloat16 and float8 accumulate in float32 and round once.
The transpose of a sum is the sum in the other direction; other operations have no
derivative.

Args:
  x: array, or pytree of arrays, of any dtype that the operation supports. In a sum bool counts
    as int32.
  axis_name: mesh axis, or several in the order in which they count ranks.
  op: "sum", "prod", "min" or "max"; for bool and integers also "and" or "or", which are
    bitwise.
  reverse: whether to reduce over {reverse} instead.

Returns:
  Arrays of x's shape and dtype (int32 for the sum of bool).{first}

Raises:
  NameError: the axis is not bound, as outside `jax.shard_map`.
  TypeError: a dtype is not supported, such as float6_e2m3fn, or the operation does not
    support it.
  ValueError: `op` is not an operation.

Example:
  >>> mesh = jax_cxl.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
  >>> before = jax.shard_map(lambda x: jax_cxl.{name}(x, "i"),
  ...                        mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P("i"))
  >>> jax.jit(before)(jnp.arange(1, 5))
  {result}
"""


@documented(
    _TEXT,
    which="this rank and all ranks before it",
    mpi="This is `MPI_Scan`, not `jax.lax.scan`, which is a loop.",
    reverse="this rank and all ranks after it",
    first="",
    result="Array([ 1,  3,  6, 10], dtype=int32)",
)
def pscan(
    x: Any, axis_name: Hashable | Sequence[Hashable], *, op: str = "sum", reverse: bool = False
) -> Any:
    return _scan(pscan_p, x, axis_name, op, reverse)


@documented(
    _TEXT,
    which="all ranks before this rank",
    mpi="This is `MPI_Exscan` with a defined result on the first rank.",
    reverse="all ranks after this rank",
    first=""" The first rank, or the last rank in
  reverse, gets the neutral element: 0, 1, the largest or smallest value of the dtype (which
  is infinite if the dtype has infinities), all bits, or no bit.""",
    result="Array([0, 1, 3, 6], dtype=int32)",
)
def pexscan(
    x: Any, axis_name: Hashable | Sequence[Hashable], *, op: str = "sum", reverse: bool = False
) -> Any:
    return _scan(pexscan_p, x, axis_name, op, reverse)


_OPERATIONS = tuple(op.name.lower() for op in ReduceOp)


def _scan(primitive, x, axis_name, op, reverse):
    name, exclusive = primitive.name, primitive is pexscan_p
    axes = named_axis.axes_of(name, axis_name)
    if not isinstance(op, str) or op not in _OPERATIONS:
        raise ValueError(f"jax_cxl.{name}: op={op!r} must be one of {', '.join(_OPERATIONS)}.")
    kind = ReduceOp[op.upper()]
    reverse = arguments.boolean(name, "reverse", reverse)

    def scan(leaf):
        if kind is ReduceOp.SUM:
            leaf = dtypes.count_bool(leaf)
        dtypes.check_reduction(name, kind, jax.dtypes.result_type(leaf))
        out = named_axis.vary(leaf, axes)
        if axes:
            out = primitive.bind(out, axes=axes, op=kind, reverse=reverse)
        return _fill_first(out, axes, reverse, kind) if exclusive else out

    return jax.tree.map(scan, x)


def _make_primitive(name: str, *, exclusive: bool) -> Any:
    primitive = _compat.tracing.Primitive(name)
    plan = Op.EXSCAN if exclusive else Op.SCAN

    def abstract_eval(x, *, axes, op, reverse):
        return named_axis.abstract_result(name, x, axes)

    def lower(ctx, x, *, axes, op, reverse):
        return lowering.collective(
            ctx, x, name=name, op=plan, axes=axes, reduce_op=op, reverse=reverse
        )

    def jvp(primals, tangents, *, op, **params):
        if op is not ReduceOp.SUM:
            raise NotImplementedError(
                f"jax_cxl.{name} with op={op.name.lower()!r} has no derivative. Only op='sum' has"
                " one."
            )
        return linear_jvp(primals, tangents, op=op, **params)

    def transpose(ct, x, *, axes, op, reverse):
        ct = primitive.bind(named_axis.vary(ct, axes), axes=axes, op=op, reverse=not reverse)
        return [_fill_first(ct, axes, not reverse, op) if exclusive else ct]

    def batch_other_axis(x, d, **params):
        return primitive.bind(x, **params), d

    def batch_own_axis(x, d, axis_size, *, op, reverse, **params):
        if d is None:
            x, d = lax.broadcast(x, (axis_size,)), 0
        y = _cumulate(x, d, op, reverse)
        # The value of the first rank of an exclusive scan is undefined here.
        return (jnp.roll(y, -1 if reverse else 1, d) if exclusive else y), d

    primitive.def_effectful_abstract_eval(abstract_eval)
    lowering.register(primitive, lower)
    ad.deflinear2(primitive, transpose)
    linear_jvp = ad.primitive_jvps[primitive]
    ad.primitive_jvps[primitive] = jvp
    batching_rules.register(primitive, batch_other_axis, batch_own_axis)
    return primitive


def _cumulate(x, dim, op, reverse):
    if op in (ReduceOp.AND, ReduceOp.OR):
        fold = lax.bitwise_and if op is ReduceOp.AND else lax.bitwise_or
        return lax.associative_scan(fold, x, reverse=reverse, axis=dim)
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


def _fill_first(out, axes, reverse, op):
    """Returns `out` with the neutral element on the first rank (on the last rank in reverse)."""
    first = lax.axis_size(axes) - 1 if reverse else 0
    neutral = jnp.full_like(out, _neutral(op, out.dtype))
    return jnp.where(lax.axis_index(axes) == first, neutral, out)


def _neutral(op, dtype):
    if op in (ReduceOp.SUM, ReduceOp.PROD):
        return np.asarray(op is ReduceOp.PROD, dtype)
    if op in (ReduceOp.AND, ReduceOp.OR):
        nothing = np.zeros((), dtype)
        return ~nothing if op is ReduceOp.AND else nothing
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


pscan_p = _make_primitive("pscan", exclusive=False)
# The result is undefined on the first rank (on the last rank in reverse).
pexscan_p = _make_primitive("pexscan", exclusive=True)
