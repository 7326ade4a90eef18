"""Lowering of the collectives to XLA custom calls.

Every collective but the barrier and the ragged one is one call of the target
`jax_cxl_collective` with one operand and one result, described by attributes. The
attribute `groups` lists the ranks, in the pool's world, of all groups one after
another, `group_size` ranks each.

Blocks must be contiguous in memory, one a rank. A collective along another dimension
than the first therefore asks XLA for a layout with this dimension outermost: the
transposition happens in XLA, which fuses it into its neighbours where it can.

XLA packs elements of less than a byte in its own way. Such arrays travel as a wider type,
their *carrier*, to which they are converted in front of the call and back behind it.
"""

import enum
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.interpreters import mlir

from jax_cxl import _axis, _platform, _programs, _ranks

COLLECTIVE_TARGET = "jax_cxl_collective"
START_TARGET = "jax_cxl_start"
RAGGED_TARGET = "jax_cxl_ragged"
BARRIER_TARGET = "jax_cxl_barrier"
PLATFORMS = tuple(platform.name for platform in _platform.ALL)


class Op(enum.IntEnum):
    """jax_cxl::plan::Op (cc/plan/plan.h)."""

    BARRIER = 0
    ALL_GATHER = 1
    ALL_REDUCE = 2
    REDUCE_SCATTER = 3
    ALL_TO_ALL = 4
    BROADCAST = 5
    REDUCE = 6
    GATHER = 7
    SCATTER = 8
    PERMUTE = 9
    SCAN = 10
    EXSCAN = 11
    RAGGED_ALL_TO_ALL = 12


class ReduceOp(enum.IntEnum):
    """jax_cxl::ReduceOp (cc/base/dtype.h)."""

    SUM = 0
    PROD = 1
    MIN = 2
    MAX = 3


# Primitive -> the rule that lowers it, of all that have been registered.
RULES: dict[Any, Callable] = {}

_REDUCTIONS = (Op.ALL_REDUCE, Op.REDUCE_SCATTER, Op.REDUCE, Op.SCAN, Op.EXSCAN)


def register(primitive: Any, rule: Any) -> None:
    """Registers a lowering rule for every platform that has a handler.

    It is not cacheable: it asks the runtime, which it may start, for the ranks of devices.
    """
    RULES[primitive] = rule
    for platform in PLATFORMS:
        mlir.register_lowering(primitive, rule, platform=platform, cacheable=False)

    def refuse(ctx, *operands, **params):
        raise NotImplementedError(
            f"jax_cxl.{primitive.name} runs between CPU or CUDA devices, not on"
            f" {' or '.join(ctx.module_context.platforms)}. Set JAX_PLATFORMS=cpu or"
            " JAX_PLATFORMS=cuda, or use jax.lax."
        )

    mlir.register_lowering(primitive, refuse, cacheable=False)


def collective(
    ctx: mlir.LoweringRuleContext,
    x: Any,
    *,
    name: str,
    op: Op,
    axes: _axis.Axes,
    groups: _axis.Groups = None,
    reduce_op: ReduceOp = ReduceOp.SUM,
    operand_blocks: int | None = None,
    result_blocks: int | None = None,
    root: int = 0,
    sources: tuple[int, ...] = (),
    reverse: bool = False,
) -> Sequence:
    """Lowers a collective with one operand and one result.

    Where the context has a second result, a token, the collective is only started: its first
    result is complete after `jax_cxl_done` (_start.py). What needs no communication, or more than
    the collective, is complete at once; its token is a constant.

    Args:
      ctx: context of the lowering rule.
      x: the operand.
      name: name of the public function, for messages of the handler.
      op: which collective.
      axes: axis names over which it runs.
      groups: axis index groups, or None for one group along `axes`.
      reduce_op: reduction, where the collective has one.
      operand_blocks: dimension of the operand that counts the ranks' blocks, if any.
      result_blocks: the same of the result.
      root: rank in the group, for collectives with a root.
      sources: for permutations, from which rank in the group each receives, or -1.
      reverse: for scans, whether they start with the last rank.

    Returns:
      The result, as lowering rules return it.
    """
    aval_in: Any = ctx.avals_in[0]
    aval_out: Any = ctx.avals_out[0]
    starts = len(ctx.avals_out) > 1
    started, ctx = ctx, ctx.replace(avals_out=[aval_out])

    def complete(results):
        return [*results, no_token()] if starts else results

    _axis.check_dtype(name, aval_in.dtype)
    if op in _REDUCTIONS and reduce_op in (ReduceOp.MIN, ReduceOp.MAX):
        _axis.check_real(name, aval_in.dtype)
    if op in _REDUCTIONS and reduce_op is ReduceOp.SUM:
        _axis.check_sum(name, aval_in.dtype)
    ranks = _ranks.of_groups(ctx, name, axes, groups)
    n = ranks.shape[1]
    if aval_out.size == 0 or (op is Op.PERMUTE and all(s < 0 for s in sources)):
        return complete(local(ctx, lambda v: lax.full(aval_out.shape, 0, aval_out.dtype), x))
    if n == 1:
        return complete(local(ctx, lambda v: lax.reshape(v, aval_out.shape), x))
    carrier = _carrier(aval_in.dtype, op, reduce_op)

    def lower(ctx, x):
        only_starts = len(ctx.avals_out) > 1
        if only_starts:
            (x,) = fence(ctx, ctx.avals_in, x)
        layout = _layout(aval_out.ndim, result_blocks)
        call = jax.ffi.ffi_lowering(
            START_TARGET if only_starts else COLLECTIVE_TARGET,
            operand_layouts=[_layout(aval_in.ndim, operand_blocks)],
            result_layouts=[layout, (0,)] if only_starts else [layout],
            # Without it XLA could make one of two equal starts, each of which has a `done`.
            has_side_effect=only_starts,
        )
        return call(
            ctx,
            x,
            **_attributes(
                ctx,
                name,
                op,
                ranks,
                reduce_op=reduce_op,
                dtype=_axis.DTYPES.index(carrier),
                count=aval_in.size // (1 if operand_blocks is None else n),
                root=root,
                sources=sources,
                reverse=reverse,
            ),
        )

    if starts and carrier == str(aval_in.dtype):
        return lower(started, x)
    return complete(_carried(ctx, carrier, lower, x))


def no_token() -> Any:
    """Returns the token of a collective that is complete."""
    return mlir.ir_constant(np.zeros(1, np.uint32))


def ragged_all_to_all(
    ctx: mlir.LoweringRuleContext,
    operand: Any,
    output: Any,
    table: Any,
    *,
    axes: _axis.Axes,
    groups: _axis.Groups,
    alone: Callable,
) -> Sequence:
    """Lowers a ragged all-to-all, which writes to its second operand.

    Args:
      ctx: context of the lowering rule.
      operand: the rows to send.
      output: what the received rows are written to.
      table: integers of shape (4, group size * slices), as cc/plan/plan.h has it.
      axes: axis names over which it runs.
      groups: axis index groups, or None for one group along `axes`.
      alone: does the same for a group of one rank.

    Returns:
      The result, as lowering rules return it.
    """
    avals: Any = ctx.avals_in
    rows, into, entries = avals
    ranks = _ranks.of_groups(ctx, "ragged_all_to_all", axes, groups)
    n = ranks.shape[1]
    if rows.size == 0 or into.size == 0:
        return [output]
    if n == 1:
        return local(ctx, alone, operand, output, table)
    carrier = _carrier(rows.dtype, Op.RAGGED_ALL_TO_ALL, ReduceOp.SUM)

    def lower(ctx, operand, output, table):
        call = jax.ffi.ffi_lowering(RAGGED_TARGET, operand_output_aliases={1: 0})
        return call(
            ctx,
            operand,
            output,
            table,
            **_attributes(
                ctx,
                "ragged_all_to_all",
                Op.RAGGED_ALL_TO_ALL,
                ranks,
                dtype=_axis.DTYPES.index(carrier),
                count=rows.size // rows.shape[0],
                rows=(rows.shape[0], into.shape[0], entries.shape[1] // n),
            ),
        )

    return _carried(ctx, carrier, lower, operand, output, table)


def barrier(ctx: mlir.LoweringRuleContext, *operands: Any, name: str, axes: _axis.Axes) -> Sequence:
    """Lowers a barrier, which passes its operands through."""
    ranks = _ranks.of_groups(ctx, name, axes, None)
    if ranks.shape[1] == 1:
        return list(operands)
    call = jax.ffi.ffi_lowering(
        BARRIER_TARGET,
        operand_output_aliases={i: i for i in range(len(operands))},
        has_side_effect=True,
    )
    return call(ctx, *operands, **_attributes(ctx, name, Op.BARRIER, ranks))


def _attributes(
    ctx,
    name,
    op,
    ranks,
    *,
    reduce_op=ReduceOp.SUM,
    dtype=0,
    count=0,
    root=0,
    sources=(),
    reverse=False,
    rows=(),
) -> dict[str, Any]:
    attributes = {
        "name": name,
        "op": np.int32(op),
        "reduce_op": np.int32(reduce_op),
        "dtype": np.int32(dtype),
        "count": np.int64(count),
        "root": np.int32(root),
        "group_size": np.int32(ranks.shape[1]),
        "groups": np.ascontiguousarray(ranks.reshape(-1), np.int32),
        "sources": np.asarray(sources, np.int32),
        "reverse": np.int32(reverse),
        "rows": np.asarray(rows, np.int64),
        "generation": np.int32(_generation(ctx, name)),
        "program": _programs.name(ctx.module_context.module),
    }
    _programs.note_site(ctx, attributes)
    return attributes


def _generation(ctx, name: str) -> int:
    """Returns the generation of the runtime, for which the program is being made."""
    from jax_cxl import _runtime

    generation = _runtime.ensure_started().generation
    if generation > 0 and jax.process_count() > 1 and not _programs.has_arguments(ctx):
        raise NotImplementedError(
            f"jax_cxl.{name}: after jax_cxl.regroup(), a program that communicates must have an"
            " argument that it uses. XLA counts the launches of all programs without any together,"
            " and the processes have made different numbers of them."
        )
    return generation


def _layout(ndim: int, blocks: int | None) -> tuple[int, ...]:
    """Returns the layout, minor to major, with dimension `blocks` outermost."""
    order = list(range(ndim))
    if blocks is not None:
        order.remove(blocks)
        order.insert(0, blocks)
    return tuple(reversed(order))


def _carrier(dtype: Any, op: Op, reduce_op: ReduceOp) -> str:
    """Returns the dtype that arrays travel in: their own, or one that holds every value.

    Integers wrap around in it as in their own type; floats round once, on the way back.
    """
    name = str(dtype)
    if name in ("int2", "int4"):
        return "int8"
    if name in ("uint2", "uint4"):
        return "uint8"
    if name == "float4_e2m1fn":
        return "float32" if op in _REDUCTIONS else "uint8"
    if name == "float8_e8m0fnu" and op in _REDUCTIONS:
        # It has no zero: the kernels do not know its sums.
        return "float32" if reduce_op in (ReduceOp.SUM, ReduceOp.PROD) else name
    return name


def _carried(ctx, carrier: str, lower: Callable, *operands: Any) -> Sequence:
    """Lowers a call to which operands of the first one's dtype, and the result, are carried."""
    dtype, carrier_dtype = ctx.avals_in[0].dtype, jnp.dtype(carrier)
    if dtype == carrier_dtype:
        return lower(ctx, *operands)
    as_bits = jnp.issubdtype(dtype, jnp.floating) and not jnp.issubdtype(
        carrier_dtype, jnp.floating
    )

    def pack(v):
        return (lax.bitcast_convert_type(v, jnp.uint4) if as_bits else v).astype(carrier_dtype)

    def unpack(v):
        if as_bits:
            return lax.bitcast_convert_type(v.astype(jnp.uint4), dtype)
        return v.astype(dtype)

    values, avals = [], []
    for value, aval in zip(operands, ctx.avals_in, strict=True):
        packed = aval.update(dtype=carrier_dtype) if aval.dtype == dtype else aval
        if aval.dtype == dtype:
            (value,) = local(ctx.replace(avals_in=[aval], avals_out=[packed]), pack, value)
        values.append(value)
        avals.append(packed)
    (aval_out,) = ctx.avals_out
    packed = aval_out.update(dtype=carrier_dtype)
    (out,) = lower(ctx.replace(avals_in=avals, avals_out=[packed]), *values)
    return local(ctx.replace(avals_in=[packed], avals_out=[aval_out]), unpack, out)


def fence(ctx, avals, *values: Any) -> Sequence:
    """Returns the values such that XLA joins nothing across this place.

    On GPUs XLA makes one kernel of a call and a slice in front of it, or an update behind it. Calls
    with side effects it would execute a second time for that.
    """
    if not values:
        return values
    ctx = ctx.replace(avals_in=avals, avals_out=avals)
    barrier = mlir.lower_fun(lambda *v: lax.optimization_barrier(v), multiple_results=True)
    return barrier(ctx, *values)


def local(ctx, function, *operands) -> Sequence:
    """Lowers a function that needs no communication."""
    return mlir.lower_fun(function, multiple_results=False)(ctx, *operands)
