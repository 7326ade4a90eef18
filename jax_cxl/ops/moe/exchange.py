"""The two moves of rows: to the experts, and back in sums. Each is the other's transpose.

Both only pull. A rank publishes its rows once, and every rank takes what it needs. So no gradient
needs a scatter over the rows of all ranks.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_cxl.ops.moe import float8
from jax_cxl.ops.moe.handle import MoeHandle
from jax_cxl.ops.take_rows import take_rows


def fetch_rows(x: Any, handle: MoeHandle) -> Any:
    """Returns the tokens of this rank's experts, (rows, D), zeros in rows that are not used."""
    fetched = take_rows(x, handle.fetch, handle.axes, published=handle.wanted)
    return fetched if handle.expand is None else take(fetched, handle.expand)


def sum_rows(y: Any, handle: MoeHandle, weights: Any = None) -> Any:
    """Returns, for each of this rank's tokens, the weighted sum of its rows at all experts.

    The order of the additions: on each rank in the order of the token's choices, rounded to the
    dtype of y once; then these sums in the order of the ranks. Both sums are in float32 or wider.

    Args:
      y: (rows, D): the experts' results.
      handle: of the dispatch.
      weights: (rows,), or None for ones.
    """
    wide = accumulator(y.dtype)

    def weighted(index=None):
        part = y if index is None else take(y, index)
        part = part.astype(wide)
        if weights is None:
            return part
        by = weights if index is None else take(weights, index)
        return by.astype(wide)[:, None] * part

    if handle.rows_of is None:
        used = (handle.fetch >= 0)[:, None]
        partial = jnp.where(used, weighted(), 0)
    else:
        partial = sum(weighted(index) for index in handle.rows_of.T)
    tokens, slots = handle.back.shape
    pulled = take_rows(
        partial.astype(y.dtype), handle.back.ravel(), handle.axes, published=handle.returned
    )
    pulled = pulled.reshape(tokens, slots, y.shape[1])
    parts = [pulled[:, slot].astype(wide) for slot in range(slots)]
    return sum(parts).astype(y.dtype) if parts else jnp.zeros((tokens, y.shape[1]), y.dtype)


def take(rows: Any, index: Any) -> Any:
    """Returns the rows of an array of this rank, zeros where the index is negative."""
    if not len(rows):
        return jnp.zeros((len(index), *rows.shape[1:]), rows.dtype)
    index = jnp.where(index < 0, len(rows), index)
    return rows.at[index].get(mode="fill", fill_value=0)


def accumulator(dtype: Any) -> Any:
    """Returns the dtype in which sums of rows of this dtype are added up."""
    return jnp.promote_types(dtype, np.float32)


# The functions of the custom derivatives. Integers have no cotangents.


@jax.custom_vjp
def dispatch(x: Any, handle: MoeHandle) -> Any:
    """`fetch_rows` with its transpose."""
    return fetch_rows(x, handle)


dispatch.defvjp(
    lambda x, handle: (fetch_rows(x, handle), handle),
    lambda handle, ct: (sum_rows(ct, handle), None),
)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def dispatch_float8(block: int, x: Any, handle: MoeHandle) -> Any:
    """`fetch_rows` of rounded tokens; its cotangents are those of `dispatch`."""
    packed = fetch_rows(float8.pack(x, block), handle)
    return float8.unpack(packed, x.shape[1], block, x.dtype)


dispatch_float8.defvjp(
    lambda block, x, handle: (dispatch_float8(block, x, handle), handle),
    lambda block, handle, ct: (sum_rows(ct, handle), None),
)


@jax.custom_vjp
def combine(y: Any, weights: Any, handle: MoeHandle) -> Any:
    """`sum_rows` with its derivatives.

    Args:
      y: (rows, D).
      weights: (assignments of all ranks,).
      handle: of the dispatch.
    """
    return sum_rows(y, handle, take(weights, handle.assignment))


def _combine_forward(y, weights, handle):
    return combine(y, weights, handle), (y, weights, handle)


def _combine_backward(kept, ct):
    y, weights, handle = kept
    arrived = fetch_rows(ct, handle)
    wide = accumulator(y.dtype)
    row_weights = take(weights, handle.assignment).astype(wide)
    to_y = (row_weights[:, None] * arrived.astype(wide)).astype(y.dtype)
    used = (handle.assignment >= 0)[:, None]
    products = jnp.where(used, y.astype(wide) * arrived.astype(wide), 0).sum(1)
    index = jnp.where(handle.assignment < 0, len(weights), handle.assignment)
    to_weights = jnp.zeros_like(weights)
    to_weights = to_weights.at[index].set(
        products.astype(weights.dtype), mode="drop", unique_indices=True
    )
    return to_y, to_weights, None


combine.defvjp(_combine_forward, _combine_backward)
