"""jax_cxl.ragged_all_to_all."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import ad, batching, mlir

from jax_cxl import _compat
from jax_cxl._job import lifecycle, platforms
from jax_cxl._lowering import contract
from jax_cxl._lowering.contract import Op
from jax_cxl._lowering.primitives import (
    indices,
    local_lowering,
    lowering,
    named_axis,
    rank_groups,
)
from jax_cxl._lowering.primitives.documentation import documented
from jax_cxl._lowering.primitives.named_axis import AxisName, GroupLists
from jax_cxl.ops.all_to_all import all_to_all_p


@documented()
def ragged_all_to_all(
    operand: Any,
    output: Any,
    input_offsets: Any,
    send_sizes: Any,
    output_offsets: Any,
    recv_sizes: Any,
    *,
    axis_name: AxisName,
    axis_index_groups: GroupLists = None,
) -> Any:
    """Sends slices of rows, whose sizes are known only at run time, to all ranks along an axis.

    Drop-in for `jax.lax.ragged_all_to_all`. The four integer arrays have an entry for each slice:
    first the slices for rank 0, then the same number of slices for rank 1, and so on. Only the rows
    that are sent go through the pool. Its transpose is `ragged_all_to_all` in the other direction.

    Args:
      operand: array of shape (N, ...) of any dtype: the rows to send.
      output: array of shape (M, ...) with the dtype and the other dimensions of operand. Rows of
        the result that receive nothing keep the values of output.
      input_offsets: index of the first row, in operand, of each slice that this rank sends.
      send_sizes: number of rows of each slice that this rank sends.
      output_offsets: index of the first row, in the *receiver's* output, of each slice that this
        rank sends.
      recv_sizes: number of rows of each slice that this rank receives.

    Returns:
      An array of output's shape and dtype.

    Raises:
      TypeError: a dtype is not supported, such as float6_e2m3fn; operand and output have
        different dtypes; or offsets or sizes are not integers.
      ValueError: shapes do not fit.
      InvalidCollectiveError: at run time, on all ranks of the group: a slice exceeds operand or
        output; the sizes of sender and receiver differ; or two slices overlap in an output, as in
        the gradient of rows that were sent twice.

    Example:
      >>> mesh = jax_cxl.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
      >>> exchange = jax.shard_map(
      ...     lambda *a: jax_cxl.ragged_all_to_all(*a, axis_name="i"),
      ...     mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P("i"))
      >>> jax.jit(exchange)(
      ...     jnp.array([1, 2, 2, 3, 4, 0]), jnp.zeros(8, int),
      ...     input_offsets := jnp.array([0, 1, 0, 1]), send_sizes := jnp.array([1, 2, 1, 1]),
      ...     output_offsets := jnp.array([0, 0, 1, 2]), recv_sizes := jnp.array([1, 1, 2, 1]))
      Array([1, 3, 0, 0, 2, 2, 4, 0], dtype=int32)
    """
    name = "ragged_all_to_all"
    axes, groups, size = named_axis.groups_along(name, axis_name, axis_index_groups)
    operand, output = jnp.asarray(operand), jnp.asarray(output)
    if operand.ndim < 1 or output.ndim < 1 or operand.shape[1:] != output.shape[1:]:
        raise ValueError(
            f"jax_cxl.{name}: operand and output must have the same dimensions after the"
            f" first, got shapes {operand.shape} and {output.shape}."
        )
    if operand.dtype != output.dtype:
        raise TypeError(
            f"jax_cxl.{name}: operand is {operand.dtype}, but output is {output.dtype}."
            " Convert one."
        )
    columns = []
    labels = ("input_offsets", "send_sizes", "output_offsets", "recv_sizes")
    values = (input_offsets, send_sizes, output_offsets, recv_sizes)
    for label, value in zip(labels, values, strict=True):
        columns.append(column := indices.integers(name, label, value))
        if column.ndim != 1 or column.shape != columns[0].shape or not column.size:
            raise ValueError(
                f"jax_cxl.{name}: {', '.join(labels)} must be vectors of one length, got shapes"
                f" {[np.shape(v) for v in values]}."
            )
        if column.size % size:
            raise ValueError(
                f"jax_cxl.{name}: the length {column.size} of {label} must be divisible by the"
                f" size {size} of the group."
            )
    columns = [indices.signed(column) for column in columns]
    widest = max((column.dtype for column in columns), key=lambda dtype: dtype.itemsize)
    table = jnp.stack([column.astype(widest) for column in columns])
    return _bind(operand, output, table, axes=axes, groups=groups, size=size, elements=1)


# `table` has the rows input_offsets, send_sizes, output_offsets and recv_sizes. Under `jax.vmap`,
# one call carries several exchanges, the `elements` of a batch. Then operand and output contain the
# rows of all elements, one element after another, and the table has `elements` entries in place of
# each entry. Offsets count rows within their element (cc/plan/slices.h).
ragged_all_to_all_p = _compat.tracing.Primitive("ragged_all_to_all")


def _bind(operand, output, table, *, axes, groups, size, elements):
    if not axes:
        return _exchange_alone(operand, output, table, elements)
    operands = named_axis.vary_alike(axes, operand, output, table)
    return ragged_all_to_all_p.bind(
        *operands, axes=axes, groups=groups, size=size, elements=elements
    )


# Usually the executors check the slices (cc/plan/slices.h). In three cases a separate custom call
# checks them, with the same errors: under `jax.vmap` over the axis of the exchange, in a group of
# one rank, and if there are no bytes to move. XLA removes computations of arrays without elements,
# so no check runs if the result of the exchange has no elements.
#
# This primitive takes tables of shape (..., ranks, 4, entries) and any other arrays, and returns
# all of them unchanged.
check_slices_p = _compat.tracing.Primitive("check_slices")
check_slices_p.multiple_results = True


def _checked(tables, *values, rows, into, elements):
    """Checks the tables of all ranks of a group. Returns the tables and `values`, unchanged.

    If the tables are wrong, the program fails at run time. The check runs only if a result is used.
    """
    sizes = (rows, into, tables.shape[-1] // tables.shape[0], elements)
    return check_slices_p.bind(tables, *values, rows=sizes)


def _lower_check(ctx, *operands, rows):
    for platform in platforms.ALL:
        if platform.name in ctx.module_context.platforms:
            lifecycle.register_handlers(platform)
    call = jax.ffi.ffi_lowering(
        contract.CHECK_SLICES_TARGET,
        operand_output_aliases={i: i for i in range(len(operands))},
        # XLA removes a call without a side effect if its results have no bytes.
        has_side_effect=True,
    )
    return call(ctx, *operands, rows=np.asarray(rows, np.int64))


def _batch_check(operands, dims, *, rows):
    (tables,), (d,) = operands, dims
    return check_slices_p.bind(jnp.moveaxis(tables, d, 0), rows=rows), [0]


def _exchange(operand, output, table, elements):
    """Computes the results of all ranks, whose values are stacked along the first dimension."""
    (n, rows), into = operand.shape[:2], output.shape[1]
    (table,) = _checked(table, rows=rows, into=into, elements=elements)
    if not rows:
        operand = jnp.zeros((n, 1, *operand.shape[2:]), operand.dtype)  # Nothing takes this row.
    slices = table.shape[-1] // n
    # Entries ordered by receiver, then by sender, then by slice.
    columns = jnp.moveaxis(table.reshape(n, 4, n, slices), (1, 2), (0, 1))
    # Arrays that are combined have the same number of dimensions: with
    # jax_numpy_rank_promotion="raise" JAX does not broadcast arrays of different rank.
    element = jnp.arange(slices, dtype=table.dtype)[None, None] % elements
    first = columns[0] + element * table.dtype.type(rows // elements)
    to = columns[2] + element * table.dtype.type(into // elements)
    first, size, to = (c.reshape(n, -1, 1) for c in (first, columns[1], to))
    sender = jnp.repeat(jnp.arange(n, dtype=table.dtype), slices)[None, :, None]
    row = jnp.arange(into, dtype=table.dtype)[None, None]
    hits = (to <= row) & (row < to + size)
    # At most one slice reaches a row, so the maximum is the entry of this slice.
    source, index = (jnp.max(jnp.where(hits, v, -1), axis=1) for v in (sender, first + row - to))
    received = operand[jnp.maximum(source, 0), jnp.maximum(index, 0)]
    arrives = (index >= 0).reshape(n, into, *[1] * (output.ndim - 2))
    return jnp.where(arrives, received, output)


def _exchange_alone(operand, output, table, elements):
    """Computes the exchange of a group of one rank."""
    return _exchange(operand[None], output[None], table[None], elements)[0]


def _abstract_eval(operand, output, table, *, axes, groups, size, elements):
    indices.check_rows(
        "ragged_all_to_all", "operand of all ranks together", size * operand.shape[0]
    )
    indices.check_rows("ragged_all_to_all", "output", output.shape[0])
    return named_axis.abstract_result("ragged_all_to_all", output, axes, strong=True)


def _lower(ctx, operand, output, table, *, axes, groups, size, elements):
    rows, into, entries = ctx.avals_in
    ranks = rank_groups.of_groups(ctx, "ragged_all_to_all", axes, groups)
    if size == 1:
        alone = functools.partial(_exchange_alone, elements=elements)
        return local_lowering.local(ctx, alone, operand, output, table)
    if rows.size == 0 or into.size == 0:
        return _only_check(ctx, output, table, ranks, elements)
    sizes = (rows.shape[0], into.shape[0], entries.shape[1] // size, elements)
    return lowering.call_rows(ctx, Op.RAGGED_ALL_TO_ALL, ranks, sizes, operand, output, table)


def _only_check(ctx, output, table, ranks, elements):
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
        return _checked(tables, x, **rows)[1]

    ctx = ctx.replace(avals_in=[tables, into])
    return local_lowering.local(ctx, after_check, gathered, output)


def _jvp(primals, tangents, **params):
    operand, output, table = primals
    result = _bind(operand, output, table, **params)
    operand_dot, output_dot, _ = tangents
    if type(operand_dot) is type(output_dot) is ad.Zero:
        return result, ad.Zero(jax.typeof(result).to_tangent_aval())
    operand_dot, output_dot = map(ad.instantiate_zeros, (operand_dot, output_dot))
    return result, _bind(operand_dot, output_dot, table, **params)


def _transpose(ct, operand, output, table, *, axes, groups, size, elements):
    wants_operand, wants_output = map(ad.is_undefined_primal, (operand, output))
    if type(ct) is ad.Zero:
        wants = ((operand, wants_operand), (output, wants_output))
        return [*(ad.Zero(x.aval) if wanted else None for x, wanted in wants), None]
    bind = functools.partial(_bind, axes=axes, groups=groups, size=size, elements=elements)
    operand_ct = output_ct = None
    if wants_operand:
        # For each slice that this rank received: its offset in the sender's operand, and in this
        # rank's output.
        sent = table[:3:2].reshape(2, size, -1)
        blocks = {"operand_blocks": 1, "result_blocks": 1, "size": size}
        came_from, went_to = all_to_all_p.bind(
            named_axis.vary(sent, axes), axes=axes, groups=groups, levels=False, **blocks
        ).reshape(2, -1)
        back = jnp.stack([went_to, table[3], came_from, table[1]])
        operand_ct = bind(ct, jnp.zeros(operand.aval.shape, ct.dtype), back)
    if wants_output:
        rows = operand.aval.shape[0] if wants_operand else operand.shape[0]
        arrived = bind(jnp.ones(rows, bool), jnp.zeros(ct.shape[0], bool), table)
        arrived = arrived.reshape(-1, *[1] * (ct.ndim - 1))
        output_ct = jnp.where(arrived, jnp.zeros_like(ct), ct)
    return [operand_ct, output_ct, None]


def _batch(axis_data, operands, dims, *, axes, groups, size, elements):
    batch = axis_data.size
    to_front = functools.partial(named_axis.to_front, size=batch)
    bind = functools.partial(_bind, axes=axes, groups=groups, size=size)
    if axis_data.name not in axes and all(d is None for d in dims):
        return bind(*operands, elements=elements), None
    operand, output, table = map(to_front, operands, dims)
    if axis_data.name in axes:
        named_axis.check_vmapped("ragged_all_to_all", axis_data.name, axes, groups)
        return _exchange(operand, output, table, elements), 0
    # One exchange carries the rows and the slices of all elements of the batch.
    rows, into = (x.reshape(-1, *x.shape[2:]) for x in (operand, output))
    table = jnp.moveaxis(table.reshape(batch, 4, -1, elements), 0, 2).reshape(4, -1)
    out = bind(rows, into, table, elements=batch * elements)
    return out.reshape(output.shape), 0


check_slices_p.def_abstract_eval(lambda *operands, rows: operands)
for _platform in platforms.ALL:
    mlir.register_lowering(check_slices_p, _lower_check, platform=_platform.name)
lowering.run_alone(check_slices_p, "rows")
batching.primitive_batchers[check_slices_p] = _batch_check

ragged_all_to_all_p.def_effectful_abstract_eval(_abstract_eval)
lowering.register(ragged_all_to_all_p, _lower)
ad.primitive_jvps[ragged_all_to_all_p] = _jvp
ad.primitive_transposes[ragged_all_to_all_p] = _transpose
batching.fancy_primitive_batchers[ragged_all_to_all_p] = _batch
