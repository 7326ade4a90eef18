"""Decides which rank fetches which tokens, in which order, from the choices of all tokens.

The decisions are integer arithmetic in XLA. Each rank learns the choices of all tokens and decides
what its own experts take. It then tells each token's owner where the token's results will lie, so
that no rank has to repeat the decisions of another.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_cxl._lowering.primitives import named_axis
from jax_cxl.ops.all_gather import all_gather
from jax_cxl.ops.all_to_all import all_to_all
from jax_cxl.ops.moe.handle import MoeHandle


def route(
    experts: Any,
    axes: named_axis.Axes,
    num_experts: int,
    capacity: int | None,
    max_rows: int | None,
) -> MoeHandle:
    """Returns how all tokens get to the experts of this rank, and back.

    Args:
      experts: (T, k), int32: the choices of this rank's tokens.
      capacity: rows of an expert, or None for rows without gaps.
      max_rows: rows of a rank without gaps; None for as many as there can be.
    """
    tokens, choices = experts.shape
    ranks = lax.axis_size(axes)
    me = jnp.int32(lax.axis_index(axes))
    per_rank = num_experts // ranks
    everyone = all_gather(experts, axes, tiled=True)  # (ranks * T, k)

    # Each of the following arrays has an entry, or a row, for each assignment (handle.py).
    # `chosen`: which of this rank's experts the assignment chooses. `mine`: whether it chooses any
    # of them. `kept`: whether it finds room. `place`: its place among the assignments of its
    # expert. `row`: its row on this rank, -1 for none.
    local = everyone.ravel() - me * per_rank
    chosen = local[:, None] == jnp.arange(per_rank, dtype=np.int32)
    mine = chosen.any(1)
    if capacity is not None:
        rows = per_rank * capacity
        place = _own(_count_before(chosen), chosen)
        kept = mine & (place < capacity)
        chosen &= kept[:, None]
        first = jnp.arange(per_rank, dtype=np.int32) * capacity  # first row of each expert
    else:
        # A token cannot have more rows here than it has choices, so one row for each assignment is
        # enough.
        rows = everyone.size if max_rows is None else max_rows
        kept = mine & (_count_before(mine) < rows)
        chosen &= kept[:, None]
        place = _own(_count_before(chosen), chosen)
        sizes = chosen.sum(0, dtype=np.int32)
        first = jnp.cumsum(sizes, dtype=np.int32) - sizes
    row = jnp.where(kept, _own(first[None], chosen) + place, -1)
    assignment = _inverse(row, rows)

    # If two experts of a rank can have the same token, the rank fetches it once for both.
    if choices > 1 and per_rank > 1:
        fetched = min(rows, len(everyone))
        taken = kept.reshape(-1, choices).any(1)
        position = jnp.where(taken, _count_before(taken), -1)
        fetch = _inverse(position, fetched)
        expand = _pick(position, jnp.where(assignment < 0, -1, assignment // choices))
        rows_of = _pick(row.reshape(-1, choices), fetch)
    else:
        position = row
        fetch = jnp.where(assignment < 0, -1, assignment // choices)
        fetched, expand, rows_of = rows, None, None
    holder = jnp.where(_valid(experts, num_experts), experts // per_rank, me)
    return MoeHandle(
        group_sizes=chosen.sum(0, dtype=np.int32),
        counts=_histogram(experts, num_experts),
        dropped=(mine & ~kept).sum(dtype=np.int32),
        assignment=assignment,
        fetch=fetch,
        expand=expand,
        rows_of=rows_of,
        back=_way_back(position, tokens, choices, fetched, axes, ranks),
        wanted=(holder != me).any(1),
        returned=(fetch >= 0) & (fetch // max(tokens, 1) != me),
        axes=axes,
        choices=choices,
        capacity=capacity,
    )


def _way_back(position, tokens, choices, fetched, axes, ranks):
    """Tells each token's owner where the token is fetched; returns `MoeHandle.back`."""
    # The parts that a rank sends are in the order of the tokens' owners. The parts that it receives
    # are in the order of the ranks that fetch the tokens.
    table = all_to_all(position.reshape(ranks, -1), axes, 0, 0, tiled=True)
    numbers = jnp.arange(ranks, dtype=np.int32)[:, None] * fetched + table
    per_token = table.shape[1] // max(tokens, 1)
    found = jnp.where(table < 0, -1, numbers).reshape(ranks, tokens, per_token)
    found = jnp.moveaxis(found, 0, 1).reshape(tokens, ranks * per_token)  # in the order of ranks
    # At most `choices` entries of a token are not -1. Move them to the front.
    slots = min(choices, found.shape[1])
    if slots == found.shape[1]:
        return found
    place = jnp.cumsum(found >= 0, 1, dtype=np.int32) - 1
    here = (found >= 0)[:, None] & (place[:, None] == jnp.arange(slots, dtype=np.int32)[:, None])
    return jnp.where(here, found[:, None], -1).max(2)


def _valid(experts, num_experts):
    return (experts >= 0) & (experts < num_experts)


def _histogram(experts, num_experts):
    index = jnp.where(_valid(experts, num_experts), experts, num_experts).ravel()
    return jnp.zeros(num_experts, np.int32).at[index].add(1, mode="drop")


def _count_before(flags):
    """Returns, for each entry, how many of the entries before it are true."""
    return jnp.cumsum(flags, 0, dtype=np.int32) - flags


def _own(values, chosen):
    """Returns, for each assignment, the entry of `values` for its expert; 0 if it has none here."""
    return jnp.where(chosen, values, 0).sum(1, dtype=np.int32)


def _inverse(places, size):
    """Returns (size,): for each place, the index of the entry of `places` that names it, or -1."""
    index = jnp.where(places < 0, size, places)
    entries = jnp.arange(len(places), dtype=np.int32)
    return jnp.full(size, -1, np.int32).at[index].set(entries, mode="drop", unique_indices=True)


def _pick(values, index):
    """Returns the rows of `values` that `index` names, -1 where the index is negative."""
    if not len(values):
        return jnp.full((len(index), *values.shape[1:]), -1, np.int32)
    found = values[jnp.maximum(index, 0)]
    return jnp.where(jnp.reshape(index < 0, (len(index), *[1] * (values.ndim - 1))), -1, found)
