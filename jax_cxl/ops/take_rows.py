"""jax_cxl.take_rows."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.interpreters import ad, batching

from jax_cxl import _compat
from jax_cxl._lowering.contract import Op
from jax_cxl._lowering.primitives import (
    dtypes,
    indices as index_arrays,
    local_lowering,
    lowering,
    named_axis,
    rank_groups,
)
from jax_cxl._lowering.primitives.documentation import documented
from jax_cxl._lowering.primitives.named_axis import AxisName, GroupLists
from jax_cxl.ops.psum_scatter import psum_scatter_p


@documented()
def take_rows(
    table: Any,
    indices: Any,
    axis_name: AxisName,
    *,
    published: Any = None,
    axis_index_groups: GroupLists = None,
) -> Any:
    """Takes rows of a table that is divided among the ranks along an axis.

    Does the same as `jnp.take(jax_cxl.all_gather(table, axis_name, tiled=True), indices, axis=0,
    mode="fill", fill_value=0)`, but each rank reads only the rows that it takes. Every rank has
    indices of its own. Each row is written to the pool once, however many ranks take it.

    The gradient with respect to the table adds up the gradients of the rows that all ranks took.
    It needs a `psum_scatter` of the size of the whole table.

    Args:
      table: array of shape (R, ...) of any dtype: this rank's rows of the table. With n ranks the
        table has n * R rows: row i of rank r is row r * R + i.
      indices: integers of shape (M,) and any integer dtype, the rows that this rank takes, in any
        order. A row may occur several times.
      published: None, or booleans of shape (R,): the rows of `table` that other ranks may take.
        Only these are written to the pool. Other rows can only be taken by the rank that holds
        them: what another rank gets for them is undefined.
      axis_index_groups: lists of axis indices, all of the same size and together a
        partition of the axis. The ranks of a group share one table. By default all ranks are one
        group.

    Returns:
      An array of shape (M, ...) and table's dtype. Rows whose index is negative, or n * R or more,
      are zeros.

    Raises:
      TypeError: a dtype is not supported, such as float6_e2m3fn, or the indices are not integers.
      ValueError: shapes do not fit, or the table or the result has 2**31 rows or more. Under
        `jax.vmap`, this limit holds for the rows of all batch elements together.

    Example:
      >>> mesh = jax_cxl.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
      >>> take = jax.shard_map(lambda table, indices: jax_cxl.take_rows(table, indices, "i"),
      ...                      mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P("i"))
      >>> jax.jit(take)(jnp.array([10, 11, 12, 13]), jnp.array([3, 0, -1, 2, 2, 1]))
      Array([13, 10,  0, 12, 12, 11], dtype=int32)
    """
    name = "take_rows"
    axes, groups, size = named_axis.groups_along(name, axis_name, axis_index_groups)
    table = jnp.asarray(table)
    indices = index_arrays.integers(name, "indices", indices)
    if table.ndim < 1 or indices.ndim != 1:
        raise ValueError(
            f"jax_cxl.{name}: table must have rows, and indices must be a vector, got shapes"
            f" {table.shape} and {indices.shape}."
        )
    _check_rows(table, indices, size)
    indices = index_arrays.below(indices, size * table.shape[0])
    masks = []
    if published is not None:
        masks = [jnp.asarray(published)]
        if masks[0].shape != table.shape[:1] or masks[0].dtype != np.bool_:
            raise ValueError(
                f"jax_cxl.{name}: published must be {table.shape[0]} booleans, got"
                f" {masks[0].dtype} of shape {masks[0].shape}."
            )
    return _bind(table, indices, *masks, axes=axes, groups=groups, size=size)


def _check_rows(table, indices, size):
    index_arrays.check_rows("take_rows", "the table of all ranks", size * table.shape[0])
    index_arrays.check_rows("take_rows", "the result", indices.shape[0])


# Operands: the table, int32 indices and, optionally, which rows are published.
take_rows_p = _compat.tracing.Primitive("take_rows")


def _bind(*operands, axes, groups, size):
    if not axes:
        return take_alone(*operands)
    alike = named_axis.vary_alike(axes, *operands)
    return take_rows_p.bind(*alike, axes=axes, groups=groups, size=size)


def take_alone(table, indices, *_):
    """Takes rows of a table that this rank holds whole. An index of no row gives zeros."""
    if not table.shape[0]:
        return jnp.zeros((*indices.shape, *table.shape[1:]), table.dtype)
    indices = jnp.where(indices < 0, table.shape[0], indices)
    return table.at[indices].get(mode="fill", fill_value=0)


def _abstract_eval(table, indices, *published, axes, groups, size):
    _check_rows(table, indices, size)  # Under jax.vmap, of all elements together.
    shape = (*indices.shape, *table.shape[1:])
    return named_axis.abstract_result("take_rows", table, axes, shape=shape)


def _lower(ctx, *operands, axes, groups, size):
    table, out = ctx.avals_in[0], ctx.avals_out[0]
    ranks = rank_groups.of_groups(ctx, "take_rows", axes, groups)
    if table.size == 0 or out.size == 0:
        return local_lowering.local(ctx, lambda *_: lax.full(out.shape, 0, out.dtype), *operands)
    if size == 1:
        return local_lowering.local(ctx, take_alone, *operands)
    sizes = (table.shape[0], out.shape[0])
    return lowering.call_rows(ctx, Op.TAKE_ROWS, ranks, sizes, *operands)


def _jvp(primals, tangents, **params):
    _, *others = primals
    result = _bind(*primals, **params)
    if type(tangents[0]) is ad.Zero:
        return result, ad.Zero(jax.typeof(result).to_tangent_aval())
    return result, _bind(tangents[0], *others, **params)


def _transpose(ct, table, indices, *published, axes, groups, size):
    nothing = [None] * (1 + len(published))
    if type(ct) is ad.Zero:
        return [ad.Zero(table.aval), *nothing]
    rows = table.aval.shape[0]
    # Add up the cotangents of each row, short floats in float32, as reductions do. The psum_scatter
    # then returns to each rank the sums for its own rows.
    at = jnp.where(indices < 0, size * rows, indices)
    wide = dtypes.accumulator(ct.dtype)
    taken = jnp.zeros((size * rows, *ct.shape[1:]), wide).at[at].add(ct.astype(wide), mode="drop")
    parts = taken.reshape(size, rows, *ct.shape[1:])
    parts = named_axis.vary(parts, tuple(axes))
    back = psum_scatter_p.bind(
        parts, axes=axes, groups=groups, size=size, operand_blocks=0, levels=None
    )
    return [back.astype(ct.dtype), *nothing]


def _batch(axis_data, operands, dims, *, axes, groups, size):
    batch = axis_data.size
    to_front = functools.partial(named_axis.to_front, size=batch)
    if axis_data.name in axes:
        named_axis.check_vmapped("take_rows", axis_data.name, axes, groups)
        table, indices = map(to_front, operands[:2], dims[:2])
        return take_alone(table.reshape(-1, *table.shape[2:]), indices), 0
    bind = {"axes": axes, "groups": groups, "size": size}
    if all(d is None for d in dims):
        return _bind(*operands, **bind), None
    if all(d is None for d in dims[1:]):  # Only the table is batched, so its rows get longer.
        rows = jnp.moveaxis(operands[0], dims[0], 1)
        return _bind(rows, *operands[1:], **bind), 1
    # Make one table of the rows of all batch elements, so that one call takes them all.
    table, indices, *published = map(to_front, operands, dims)
    rows = table.shape[1]
    rank, row = jnp.divmod(indices, np.int32(rows))
    element = jnp.arange(batch, dtype=np.int32)[:, None]
    outside = (indices < 0) | (indices >= size * rows)
    at = jnp.where(outside, -1, (rank * batch + element) * rows + row)
    flat = [x.reshape(-1, *x.shape[2:]) for x in (table, at, *published)]
    out = _bind(*flat, **bind)
    return out.reshape(*indices.shape, *table.shape[2:]), 0


take_rows_p.def_effectful_abstract_eval(_abstract_eval)
lowering.register(take_rows_p, _lower)
ad.primitive_jvps[take_rows_p] = _jvp
ad.primitive_transposes[take_rows_p] = _transpose
batching.fancy_primitive_batchers[take_rows_p] = _batch
