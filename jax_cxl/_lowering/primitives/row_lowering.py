"""Lowering of the collectives that move rows, `take_rows` and `ragged_all_to_all`.

They are custom calls of the target `jax_cxl_rows`, with more operands than other collectives
(lowering.py) have: arrays that determine at run time which rows move.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.interpreters import mlir

from jax_cxl._lowering import contract
from jax_cxl._lowering.contract import DTYPES, Op
from jax_cxl._lowering.primitives import (
    carriers,
    check_slices,
    local_lowering,
    lowering,
    named_axis,
    rank_groups,
)


def ragged_all_to_all(
    ctx: mlir.LoweringRuleContext,
    operand: Any,
    output: Any,
    table: Any,
    *,
    axes: named_axis.Axes,
    groups: named_axis.Groups,
    elements: int,
    alone: Callable,
) -> Sequence:
    """Lowers `ragged_all_to_all`, which writes the rows that it receives to `output`.

    `table` has the shape (4, group size * slices), as cc/plan/slices.h describes it. A batch of
    `elements` exchanges shares one call. `alone` computes the result in a group of one rank.
    """
    avals: Any = ctx.avals_in
    rows, into, entries = avals
    ranks = rank_groups.of_groups(ctx, "ragged_all_to_all", axes, groups)
    n = ranks.shape[1]
    if n == 1:
        return local_lowering.local(ctx, alone, operand, output, table)
    if rows.size == 0 or into.size == 0:
        return _only_check(ctx, output, table, ranks, elements)
    sizes = (rows.shape[0], into.shape[0], entries.shape[1] // n, elements)
    return _call_rows(ctx, Op.RAGGED_ALL_TO_ALL, ranks, sizes, operand, output, table)


def _only_check(ctx: Any, output: Any, table: Any, ranks: np.ndarray, elements: int) -> Sequence:
    """Checks the tables of all ranks, and returns `output` unchanged, because no bytes move."""
    operand, into, entries = ctx.avals_in
    tables = jax.core.ShapedArray((ranks.shape[1], *entries.shape), entries.dtype)
    (gathered,) = lowering.between(
        ctx.replace(avals_in=[entries], avals_out=[tables]),
        table,
        name="ragged_all_to_all",
        op=Op.ALL_GATHER,
        ranks=ranks,
        result_blocks=0,
    )

    def after_check(tables, x):
        rows = {"rows": operand.shape[0], "into": into.shape[0], "elements": elements}
        return check_slices.checked(tables, x, **rows)[1]

    ctx = ctx.replace(avals_in=[tables, into])
    return local_lowering.local(ctx, after_check, gathered, output)


def take_rows(
    ctx: mlir.LoweringRuleContext,
    table: Any,
    indices: Any,
    *published: Any,
    axes: named_axis.Axes,
    groups: named_axis.Groups,
    alone: Callable,
) -> Sequence:
    """Lowers `take_rows`, or a start of it, as `lowering.between` does.

    At most one boolean vector tells which rows of `table` other ranks may take. `alone` computes
    the result in a group of one rank.
    """
    table_aval: Any = ctx.avals_in[0]
    aval_out: Any = ctx.avals_out[0]
    operands = (table, indices, *published)
    ranks = rank_groups.of_groups(ctx, "take_rows", axes, groups)
    if table_aval.size == 0 or aval_out.size == 0:
        zeros = lambda *_: lax.full(aval_out.shape, 0, aval_out.dtype)  # noqa: E731
        return local_lowering.local(ctx, zeros, *operands)
    if ranks.shape[1] == 1:
        return local_lowering.local(ctx, alone, *operands)
    sizes = (table_aval.shape[0], aval_out.shape[0])
    return _call_rows(ctx, Op.TAKE_ROWS, ranks, sizes, *operands)


def _call_rows(
    ctx: mlir.LoweringRuleContext, op: Op, ranks: np.ndarray, rows: tuple[int, ...], *operands: Any
) -> Sequence:
    """Calls an operation that moves rows, or starts it if the context has a second result, a token.

    On GPUs, the call has one more result, its scratch memory.
    """
    table: Any = ctx.avals_in[0]
    carrier = carriers.of(table.dtype, op)

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
            operand_layouts=[lowering.layout(aval.ndim, None) for aval in ctx.avals_in],
            result_layouts=[lowering.layout(aval.ndim, None) for aval in avals_out],
            operand_output_aliases={1: 0} if op is Op.RAGGED_ALL_TO_ALL else None,
            has_side_effect=bool(token),
        )
        sizes = {"dtype": DTYPES.index(carrier), "count": table.size, "rows": rows}
        made = lowering.attributes(ctx, op.name.lower(), op, ranks, **sizes)
        results = call(ctx.replace(avals_out=avals_out), *operands, **made)
        return [results[0], *results[1 + len(scratch) :]]

    return carriers.carried(ctx, carrier, lower, *operands)
