"""jax_cxl.pscan and jax_cxl.pexscan: reductions over the ranks up to this one."""

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
from jax_cxl._lowering.primitives.named_axis import AxisName

_TEXT = """\
Reduces x over {which} along a named axis.

{mpi} The reduction takes the ranks' values
in rank order; float16, bfloat16 and float8 accumulate in float32 and round once.
The transpose of a sum is the sum in the other direction; other operations have no
derivative.

Args:
  x: array, or pytree of arrays, of any dtype that the operation supports. In a sum bool counts
    as int32.
  op: "sum", "prod", "min" or "max"; for bool and integers also "and" or "or", which are
    bitwise.
  reverse: whether to reduce over {reverse} instead.

Returns:
  Arrays of x's shape and dtype (int32 for the sum of bool).{first}

Raises:
  TypeError: the operation does not support a dtype.
  ValueError: `op` is not an operation.

Example:
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
def pscan(x: Any, axis_name: AxisName, *, op: str = "sum", reverse: bool = False) -> Any:
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
def pexscan(x: Any, axis_name: AxisName, *, op: str = "sum", reverse: bool = False) -> Any:
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
            out = primitive.bind(out, axes=axes, reduce_op=kind, reverse=reverse)
        return _fill_first(out, axes, reverse, kind) if exclusive else out

    return jax.tree.map(scan, x)


def _make_primitive(name: str, *, exclusive: bool) -> Any:
    def transpose(ct, x, *, axes, reduce_op, reverse):
        ct = named_axis.vary(ct, axes)
        ct = primitive.bind(ct, axes=axes, reduce_op=reduce_op, reverse=not reverse)
        return [_fill_first(ct, axes, not reverse, reduce_op) if exclusive else ct]

    def jvp(primals, tangents, *, reduce_op, **params):
        if reduce_op is not ReduceOp.SUM:
            raise NotImplementedError(
                f"jax_cxl.{name} with op={reduce_op.name.lower()!r} has no derivative. Only"
                " op='sum' has one."
            )
        return linear_jvp(primals, tangents, reduce_op=reduce_op, **params)

    def over_vmapped(x, d, *, reduce_op, reverse):
        y = _cumulate(x, d, reduce_op, reverse)
        # In an exclusive scan, the first rank's value is undefined here: `_fill_first` sets it.
        return (jnp.roll(y, -1 if reverse else 1, d) if exclusive else y), d

    op = Op.EXSCAN if exclusive else Op.SCAN
    primitive = primitives.make(name, op, over_vmapped=over_vmapped)
    ad.deflinear2(primitive, transpose)
    linear_jvp = ad.primitive_jvps[primitive]
    ad.primitive_jvps[primitive] = jvp
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
    wide = np.int32 if x.dtype == np.bool else dtypes.accumulator(x.dtype)
    return cumulate(x.astype(wide), dim, reverse=reverse).astype(x.dtype)


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
