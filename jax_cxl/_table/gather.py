"""The primitive that takes rows of a table. The table is an attribute of the call."""

import enum
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.interpreters import ad, batching

from jax_cxl import _compat
from jax_cxl._job import lifecycle, platforms
from jax_cxl._lowering import contract
from jax_cxl._lowering.contract import Op, ReduceOp
from jax_cxl._lowering.primitives import dtypes, indices, local_lowering, lowering
from jax_cxl._table.columns import Column


class Mode(enum.IntEnum):
    """What a take does about ids outside of the table: Mode in cc/store/table/lookup.h."""

    FILL = 0
    CLIP = 1
    ERROR = 2


def mode_of(name: Any) -> Mode:
    """Returns a mode by its name."""
    for mode in Mode:
        if name == mode.name.lower():
            return mode
    raise ValueError(f"mode={name!r} must be 'fill', 'clip' or 'error'")


def take(column: Column, ids: Any, mode: Mode, fill_value: Any = None) -> Any:
    """Returns rows of a column, in its dtype, with `fill_value` in mode FILL."""
    dtype = column.dtype
    carrier = np.dtype(dtypes.carrier(dtype, Op.TAKE_ROWS, ReduceOp.SUM))
    fill = np.asarray(_default_fill(dtype) if fill_value is None else fill_value).astype(dtype)
    rows = table_take_p.bind(ids, column=column, mode=mode, fill=fill.tobytes(), dtype=carrier)
    if dtype == carrier:
        return rows
    if jnp.issubdtype(dtype, np.floating):
        return lax.bitcast_convert_type(rows.astype(jnp.uint4), dtype)
    return rows.astype(dtype)


def checked_ids(column: Column, ids: Any) -> Any:
    """Checks ids, and returns them as int32 or int64."""
    x64 = jax.dtypes.canonicalize_dtype(np.int64) == np.int64
    if not x64 and column.rows > np.iinfo(np.int32).max:
        raise ValueError(f"a table of {column.rows} rows needs 64-bit ids: set jax_enable_x64")
    if jax.dtypes.canonicalize_dtype(column.dtype) != column.dtype:
        raise TypeError(f"the rows have the dtype {column.dtype}: set jax_enable_x64")
    dtypes.check_dtype("Table.take", column.dtype)
    return indices.signed(indices.integers("Table.take", "ids", ids))


def _default_fill(dtype: np.dtype) -> Any:
    if jnp.issubdtype(dtype, np.inexact):
        return np.nan
    if dtype == np.bool_:
        return True
    limits = jnp.iinfo(dtype)
    return int(limits.min if jnp.issubdtype(dtype, np.signedinteger) else limits.max)


# Operand: ids of any shape, int32 or int64. The result has a row for each id.
table_take_p = _compat.tracing.Primitive("table_take")


def _abstract_eval(ids, *, column, mode, fill, dtype):
    return ids.update(shape=(*ids.shape, *column.row_shape), dtype=dtype, weak_type=False)


def _lower(ctx, ids, *, column, mode, fill, dtype):
    """Lowers a take.

    If the context has a second result, a token, the call only starts the take where that is
    possible. `lowering.between` does the same for collectives.
    """
    on_gpus = "cuda" in ctx.module_context.platforms
    platform = platforms.CUDA if on_gpus else platforms.CPU
    lifecycle.register_handlers(platform)
    column.use(platform)
    ctx.module_context.add_keepalive(column)
    starts = len(ctx.avals_out) > 1
    # The call completes the take at once if the rows have no bytes. It also does so in mode ERROR,
    # in which it waits for the GPU anyway.
    aside = starts and mode is not Mode.ERROR and ctx.avals_out[0].size > 0
    if aside:
        (ids,) = local_lowering.fence(ctx, ctx.avals_in, ids)
    elif starts:
        ctx = ctx.replace(avals_out=ctx.avals_out[:1])
    call = jax.ffi.ffi_lowering(
        contract.START_TABLE_TARGET if aside else contract.TABLE_TARGET,
        # `done` uses the layouts of the start, so they are set explicitly.
        operand_layouts=[lowering.layout(aval.ndim, None) for aval in ctx.avals_in],
        result_layouts=[lowering.layout(aval.ndim, None) for aval in ctx.avals_out],
        # Without a side effect XLA could merge two equal starts, each of which has a `done`.
        has_side_effect=aside,
    )
    return call(
        ctx,
        ids,
        table=np.int64(column.identity),
        column=np.int32(column.number),
        mode=np.int32(mode),
        fill=np.frombuffer(fill, np.uint8),
    )


def _batch(axis_data, operands, dims, **params):
    (ids,), (dim,) = operands, dims
    return table_take_p.bind(ids, **params), dim


def _jvp(primals, tangents, **params):
    out = table_take_p.bind(*primals, **params)
    return out, ad.Zero(jax.typeof(out).to_tangent_aval())


table_take_p.def_abstract_eval(_abstract_eval)
lowering.run_alone(table_take_p, "column", "mode", "fill", "dtype")
lowering.register(table_take_p, _lower)
ad.primitive_jvps[table_take_p] = _jvp
batching.fancy_primitive_batchers[table_take_p] = _batch
