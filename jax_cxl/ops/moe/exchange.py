"""Dispatch and combine. Each has a part that communicates and a part that does not.

    dispatch   fetch    every rank takes the tokens that its experts want, each once
               expand   copies a token to its other rows on this rank
    combine    add      adds up the rows that this rank's experts made of a token
               deliver  the token's owner takes these sums of all ranks, and adds them up

`fetch` and `deliver` are each other's transposes, and so are `expand` and `add` with weights 1.
`fetch` and `deliver` only pull: a rank publishes its rows once, and every rank takes what it needs.
So no gradient needs a scatter over the rows of all ranks.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_cxl._lowering.primitives import dtypes
from jax_cxl._lowering.start_done import split_function
from jax_cxl.ops.moe.handle import MoeHandle
from jax_cxl.ops.take_rows import take_alone, take_rows

_FLOAT8 = jnp.float8_e4m3fn
_LARGEST = float(jnp.finfo(_FLOAT8).max)

# --- functions that communicate ---


def take_tokens(x: Any, handle: MoeHandle) -> Any:
    """Takes the tokens that this rank's experts want: (T, D) -> (fetched, D)."""
    return take_rows(x, handle.fetch, handle.axes, published=handle.wanted)


def take_sums(partial: Any, handle: MoeHandle) -> Any:
    """Takes the sums of this rank's tokens from all ranks: (fetched, D) -> (T * slots, D).

    The result has `slots` rows for each token, because a token has at most `slots` sums.
    """
    return take_rows(partial, handle.back.ravel(), handle.axes, published=handle.returned)


# Functions with custom derivatives. The arrays of a handle are integers, so they have no
# cotangents.


@jax.custom_vjp
def fetch(x: Any, handle: MoeHandle) -> Any:
    """`take_tokens`, with `deliver` as its transpose."""
    return take_tokens(x, handle)


@jax.custom_vjp
def deliver(partial: Any, handle: MoeHandle) -> Any:
    """Returns the sum of each of this rank's tokens over all ranks: (fetched, D) -> (T, D).

    The additions are in the order of the ranks, in float32 or wider. The sum is rounded once.
    """
    return add_ranks(take_sums(partial, handle), handle)


fetch.defvjp(
    lambda x, handle: (fetch(x, handle), handle),
    lambda handle, ct: (deliver(ct, handle), None),
)
deliver.defvjp(
    lambda partial, handle: (deliver(partial, handle), handle),
    lambda handle, ct: (fetch(ct, handle), None),
)


def add_ranks(pulled: Any, handle: MoeHandle) -> Any:
    """Adds up the rows that `take_sums` returns: (T * slots, D) -> (T, D)."""
    if not len(pulled):  # There are no tokens.
        return jnp.zeros_like(pulled)
    tokens, slots = handle.back.shape
    pulled = pulled.reshape(tokens, slots, pulled.shape[1])
    wide = dtypes.accumulator(pulled.dtype)
    return sum(pulled[:, slot].astype(wide) for slot in range(slots)).astype(pulled.dtype)


# --- the same moves, started on a GPU: these return the collectives under way ---


@jax.custom_vjp
def start_fetch(x: Any, handle: MoeHandle) -> list[split_function.Pending]:
    """Starts `take_tokens`. In derivatives the program waits for its transpose at once."""
    return split_function.start(take_tokens, x, handle)[0]


@jax.custom_vjp
def start_deliver(partial: Any, handle: MoeHandle) -> list[split_function.Pending]:
    """Starts `take_sums`, whose result only `add_ranks` may use."""
    return split_function.start(take_sums, partial, handle)[0]


def _start_deliver_backward(handle, cts):
    ((_, ct, _),) = cts
    # `add_ranks` has given all rows of a token the same cotangent.
    slots = max(handle.back.shape[1], 1)
    return fetch(ct[::slots], handle), None


start_fetch.defvjp(
    lambda x, handle: (start_fetch(x, handle), handle),
    lambda handle, cts: (deliver(cts[0][1], handle), None),
)
start_deliver.defvjp(
    lambda partial, handle: (start_deliver(partial, handle), handle), _start_deliver_backward
)

# --- functions that do not communicate ---


def _copies(fetched: Any, handle: MoeHandle) -> Any:
    return fetched if handle.expand is None else take_alone(fetched, handle.expand)


@jax.custom_vjp
def expand(fetched: Any, handle: MoeHandle) -> Any:
    """Copies fetched tokens to the rows of the experts: (fetched, D) -> (rows, D).

    Rows that are not used are zeros.
    """
    return _copies(fetched, handle)


@jax.custom_vjp
def add(y: Any, weights: Any, handle: MoeHandle) -> Any:
    """Adds up the weighted rows of each token on this rank: (rows, D) -> (fetched, D).

    The additions are in the order of the token's choices, in float32 or wider. The sum is rounded
    once, to the dtype of y.

    Args:
      weights: (assignments of all ranks,), or None for ones.
    """
    wide = dtypes.accumulator(y.dtype)
    by_row = None if weights is None else take_alone(weights, handle.assignment).astype(wide)

    def weighted(index=None):
        part = y if index is None else take_alone(y, index)
        part = part.astype(wide)
        if by_row is None:
            return part
        by = by_row if index is None else take_alone(by_row, index)
        return by[:, None] * part

    if handle.rows_of is None:
        used = (handle.fetch >= 0)[:, None]
        partial = jnp.where(used, weighted(), 0)
    else:
        partial = sum(weighted(index) for index in handle.rows_of.T)
    return partial.astype(y.dtype)


def _add_forward(y, weights, handle):
    return add(y, weights, handle), (y if weights is not None else None, weights, handle)


def _add_backward(kept, ct):
    y, weights, handle = kept
    arrived = expand(ct, handle)
    if weights is None:
        return arrived, None, None
    wide = dtypes.accumulator(y.dtype)
    row_weights = take_alone(weights, handle.assignment).astype(wide)
    to_y = (row_weights[:, None] * arrived.astype(wide)).astype(y.dtype)
    used = (handle.assignment >= 0)[:, None]
    products = jnp.where(used, y.astype(wide) * arrived.astype(wide), 0).sum(1)
    index = jnp.where(handle.assignment < 0, len(weights), handle.assignment)
    to_weights = jnp.zeros_like(weights)
    to_weights = to_weights.at[index].set(
        products.astype(weights.dtype), mode="drop", unique_indices=True
    )
    return to_y, to_weights, None


expand.defvjp(
    lambda fetched, handle: (expand(fetched, handle), handle),
    lambda handle, ct: (add(ct, None, handle), None),
)
add.defvjp(_add_forward, _add_backward)


# --- rows in float8 with scales, as one table of bytes ---


def _pack(x: Any, block: int) -> Any:
    """Returns bytes, (rows, D + 4 * D / block): the elements, then a float32 scale for each block.

    The scale of a block maps its largest magnitude to 448, the largest number of float8_e4m3fn.
    """
    blocks = x.astype(np.float32).reshape(len(x), x.shape[1] // block, block)
    largest = jnp.abs(blocks).max(2, keepdims=True)
    scales = jnp.where(largest > 0, largest * np.float32(1 / _LARGEST), 1)
    elements = lax.bitcast_convert_type((blocks / scales).astype(_FLOAT8), np.uint8)
    scale_bytes = lax.bitcast_convert_type(scales[..., 0], np.uint8)
    return jnp.concatenate(
        [elements.reshape(x.shape), scale_bytes.reshape(len(x), 4 * (x.shape[1] // block))], axis=1
    )


def _unpack(packed: Any, width: int, block: int, dtype: Any) -> Any:
    """Returns the rows, (rows, width). Rows of zero bytes become zeros."""
    elements = lax.bitcast_convert_type(packed[:, :width], _FLOAT8).astype(np.float32)
    scale_bytes = packed[:, width:].reshape(len(packed), width // block, 4)
    scales = lax.bitcast_convert_type(scale_bytes, np.float32)
    blocks = elements.reshape(len(packed), width // block, block) * scales[..., None]
    return blocks.reshape(len(packed), width).astype(dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def dispatch_float8(block: int, x: Any, handle: MoeHandle) -> Any:
    """Fetches and expands rounded tokens. Its cotangents ignore the rounding."""
    packed = _copies(take_tokens(_pack(x, block), handle), handle)
    return _unpack(packed, x.shape[1], block, x.dtype)


dispatch_float8.defvjp(
    lambda block, x, handle: (dispatch_float8(block, x, handle), handle),
    lambda block, handle, ct: (deliver(add(ct, None, handle), handle), None),
)
