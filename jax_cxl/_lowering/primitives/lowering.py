"""Lowering of the collectives to XLA custom calls.

Every collective except `barrier`, `ragged_all_to_all` and `take_rows` is a custom call of the
target `jax_cxl_collective` with one operand and one result. Attributes describe the call. The
attribute `groups` lists the ranks of all groups, group after group, with `group_size` ranks in
each.

The block of each rank must be contiguous in memory. A collective along a dimension other than the
first therefore asks XLA for a layout with this dimension outermost. XLA transposes the array then,
and fuses the transposition with other operations if it can.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.interpreters import mlir

from jax_cxl._job import lifecycle, lowered_programs, platforms
from jax_cxl._lowering import contract
from jax_cxl._lowering.contract import DTYPES, Op, ReduceOp
from jax_cxl._lowering.primitives import dtypes, local_lowering

# Primitive -> its lowering rule.
RULES: dict[Any, Callable] = {}


def register(primitive: Any, rule: Any) -> None:
    """Registers a lowering rule for every platform that has a handler.

    The rule is not cacheable, because it asks the runtime for the ranks of devices, and may start
    the runtime.
    """
    RULES[primitive] = rule
    for platform in platforms.ALL:
        mlir.register_lowering(primitive, rule, platform=platform.name, cacheable=False)

    def refuse(ctx, *operands, **params):
        raise NotImplementedError(
            f"jax_cxl.{primitive.name} runs between CPU or CUDA devices, not on"
            f" {' or '.join(ctx.module_context.platforms)}. Set JAX_PLATFORMS=cpu or"
            " JAX_PLATFORMS=cuda, or use jax.lax."
        )

    mlir.register_lowering(primitive, refuse, cacheable=False)


def run_alone(primitive: Any, *parameters: str) -> None:
    """Lets a primitive run outside of programs: as a program of this one operation."""
    program = jax.jit(primitive.bind, static_argnames=parameters)

    @primitive.def_impl
    def run(*operands: Any, **values: Any) -> Any:
        with jax.disable_jit(False):  # With it, the program would come here again, without end.
            return program(*operands, **values)


def between(
    ctx: mlir.LoweringRuleContext,
    x: Any,
    *,
    name: str,
    op: Op,
    ranks: np.ndarray,
    reduce_op: ReduceOp = ReduceOp.SUM,
    operand_blocks: int | None = None,
    result_blocks: int | None = None,
    **settings: Any,
) -> Sequence:
    """Lowers a collective with one operand and one result, between known ranks.

    If the context has a second result, a token, the call only starts the collective: its first
    result is complete after `jax_cxl_done` (start_done/halves.py). A call that needs no
    communication, or that needs a carrier, completes at once, and has no token.

    The dimensions `operand_blocks` and `result_blocks` count the ranks' blocks, if there are any.
    """
    aval_in: Any = ctx.avals_in[0]
    aval_out: Any = ctx.avals_out[0]
    dtypes.check_dtype(name, aval_in.dtype)
    if op.reduces:
        dtypes.check_reduction(name, reduce_op, aval_in.dtype)
    n = ranks.shape[1]
    if aval_out.size == 0 or (op is Op.PERMUTE and max(settings["sources"]) < 0):
        return local_lowering.local(ctx, lambda v: lax.full(aval_out.shape, 0, aval_out.dtype), x)
    if n == 1:
        return local_lowering.local(ctx, lambda v: lax.reshape(v, aval_out.shape), x)
    carrier = dtypes.carrier(aval_in.dtype, op, reduce_op)

    def lower(ctx, x):
        only_starts = len(ctx.avals_out) > 1
        if only_starts:
            (x,) = local_lowering.fence(ctx, ctx.avals_in, x)
        result_layout = layout(aval_out.ndim, result_blocks)
        call = jax.ffi.ffi_lowering(
            contract.START_TARGET if only_starts else contract.COLLECTIVE_TARGET,
            operand_layouts=[layout(aval_in.ndim, operand_blocks)],
            result_layouts=[result_layout, (0,)] if only_starts else [result_layout],
            # Without a side effect XLA could merge two equal starts, each of which has a `done`.
            has_side_effect=only_starts,
        )
        sizes = {
            "dtype": DTYPES.index(carrier),
            "count": aval_in.size // (1 if operand_blocks is None else n),
        }
        made = attributes(ctx, name, op, ranks, reduce_op=reduce_op, **sizes, **settings)
        return call(ctx, x, **made)

    return local_lowering.carried(ctx, carrier, lower, x)


def call_rows(
    ctx: mlir.LoweringRuleContext, op: Op, ranks: np.ndarray, rows: tuple[int, ...], *operands: Any
) -> Sequence:
    """Calls an operation that moves rows, or starts it if the context has a second result, a token.

    Arrays among the operands determine at run time which rows move. On GPUs, the call has one more
    result, its scratch memory.
    """
    table: Any = ctx.avals_in[0]
    carrier = dtypes.carrier(table.dtype, op)

    def lower(ctx, *operands):
        result, *token = ctx.avals_out
        if token:
            operands = tuple(local_lowering.fence(ctx, ctx.avals_in, *operands))
        scratch = []
        if "cuda" in ctx.module_context.platforms:
            shape = (contract.row_scratch_bytes(ranks.shape[1], *rows[:3]),)
            scratch = [jax.core.ShapedArray(shape, np.dtype(np.uint8))]
        avals_out = [result, *scratch, *token]
        call = jax.ffi.ffi_lowering(
            contract.START_ROWS_TARGET if token else contract.ROWS_TARGET,
            # `done` asks for the same layouts.
            operand_layouts=[layout(aval.ndim, None) for aval in ctx.avals_in],
            result_layouts=[layout(aval.ndim, None) for aval in avals_out],
            operand_output_aliases={1: 0} if op is Op.RAGGED_ALL_TO_ALL else None,
            has_side_effect=bool(token),
        )
        sizes = {"dtype": DTYPES.index(carrier), "count": table.size, "rows": rows}
        made = attributes(ctx, op.name.lower(), op, ranks, **sizes)
        results = call(ctx.replace(avals_out=avals_out), *operands, **made)
        return [results[0], *results[1 + len(scratch) :]]

    return local_lowering.carried(ctx, carrier, lower, *operands)


def attributes(ctx, name: str, op: Op, ranks: np.ndarray, **settings: Any) -> dict[str, Any]:
    """Returns the attributes of a call in the program that is being lowered."""
    made = contract.attributes(
        name,
        op,
        ranks,
        generation=lifecycle.ensure_started().generation,
        program=lowered_programs.name(ctx.module_context.module),
        **settings,
    )
    lowered_programs.note_site(ctx, made)
    return made


def layout(ndim: int, blocks: int | None) -> tuple[int, ...]:
    """Returns the layout, minor to major, with dimension `blocks` outermost."""
    order = list(range(ndim))
    if blocks is not None:
        order.remove(blocks)
        order.insert(0, blocks)
    return tuple(reversed(order))
