"""Four ways to bring tokens to the ranks of their experts, and the results back.

Each is a function of this rank's tokens (T, D), choices (T, k) and weights (T, k), of the experts,
and of `Sizes`. The experts are a function from (experts of a rank, capacity, D) to the same shape.
The result is the weighted sums (T, D).

`dense` gives every rank an equal share of an expert's rows, as models do if they have only
`all_to_all`. So it drops tokens earlier than `dispatch` and `ragged` do. Those two drop the same
tokens.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Experts = Callable[[jax.Array], jax.Array]


@dataclasses.dataclass(frozen=True)
class Sizes:
    """What all ranks agree on.

    Attributes:
      axis: the mesh axis of the ranks.
      experts: number of experts of all ranks.
      capacity: how many rows an expert has room for, a multiple of the number of ranks.
    """

    axis: str
    experts: int
    capacity: int


def capacity(tokens: int, choices: int, experts: int, ranks: int, factor: float) -> int:
    """Returns `Sizes.capacity`: `factor` times the mean number of choices of an expert, rounded up.

    Each of the `ranks` ranks has `tokens` tokens, and each token chooses `choices` of the `experts`
    experts.
    """
    return ranks * -int(-factor * tokens * choices // experts)


def dispatch(
    x: jax.Array, chosen: jax.Array, weights: jax.Array, experts: Experts, sizes: Sizes
) -> jax.Array:
    """Exchanges by `jax_cxl.moe_dispatch` and `jax_cxl.moe_combine`."""
    import jax_cxl

    rows, handle = jax_cxl.moe_dispatch(
        x, chosen, sizes.axis, num_experts=sizes.experts, capacity=sizes.capacity
    )
    return jax_cxl.moe_combine(experts(rows), weights, handle)


def dense(collectives: Any) -> Callable[..., jax.Array]:
    """Returns an exchange that calls `all_to_all` twice.

    `collectives` is the module of `all_to_all`: `jax.lax` or `jax_cxl`.
    """

    def exchange(x, chosen, weights, experts, sizes):
        ranks = jax.lax.axis_size(sizes.axis)
        share = sizes.capacity // ranks
        before = _before(chosen, sizes.experts)
        slot = jnp.where(before < share, chosen.ravel() * share + before, sizes.experts * share)
        sent = jnp.zeros((sizes.experts * share, x.shape[1]), x.dtype)
        sent = sent.at[slot].set(jnp.repeat(x, chosen.shape[1], 0), mode="drop")

        def to_owners(rows):
            return collectives.all_to_all(rows, sizes.axis, 0, 0, tiled=True)

        # The dimensions are rank, expert and row. An expert needs its rows from all ranks together.
        shape = (ranks, sizes.experts // ranks, share, x.shape[1])
        rows = to_owners(sent).reshape(shape).swapaxes(0, 1)
        y = experts(rows.reshape(shape[1], sizes.capacity, x.shape[1]))
        back = y.reshape(shape[1], ranks, *shape[2:]).swapaxes(0, 1)
        y = to_owners(back.reshape(sent.shape))
        return _weighted(y, slot, weights)

    return exchange


def ragged(
    x: jax.Array, chosen: jax.Array, weights: jax.Array, experts: Experts, sizes: Sizes
) -> jax.Array:
    """Exchanges by two `jax_cxl.ragged_all_to_all`."""
    import jax_cxl

    axis = sizes.axis
    ranks, me = jax.lax.axis_size(axis), jax.lax.axis_index(axis)
    per_rank = sizes.experts // ranks
    send_sizes = jnp.zeros(sizes.experts, np.int32).at[chosen.ravel()].add(1)
    # The dimensions are sender, receiver and expert.
    table = jax_cxl.all_gather(send_sizes, axis).reshape(ranks, ranks, per_rank)
    # Each receiver orders its rows by expert, and then by sender.
    order = table.transpose(1, 2, 0).reshape(ranks, per_rank * ranks)
    first = (jnp.cumsum(order, 1) - order).reshape(ranks, per_rank, ranks).transpose(2, 0, 1)
    input_offsets = jnp.cumsum(send_sizes) - send_sizes
    output_offsets = first[me].ravel()
    received = table[:, me].ravel()
    slot = input_offsets[chosen.ravel()] + _before(chosen, sizes.experts)
    repeated = jnp.repeat(x, chosen.shape[1], 0)
    sent = jnp.zeros_like(repeated).at[slot].set(repeated, unique_indices=True)
    rows = jnp.zeros((ranks * chosen.size, x.shape[1]), x.dtype)
    rows = jax_cxl.ragged_all_to_all(
        sent, rows, input_offsets, send_sizes, output_offsets, received, axis_name=axis
    )

    group_sizes = table[:, me].sum(0)
    starts = jnp.cumsum(group_sizes) - group_sizes
    place = jnp.arange(sizes.capacity)
    index = jnp.where(place < group_sizes[:, None], starts[:, None] + place, len(rows))
    y = experts(rows.at[index].get(mode="fill", fill_value=0))
    y = jnp.zeros_like(rows).at[index].set(y, mode="drop")
    # The rows that come back go to where each sender took them from.
    sender_offsets = jax_cxl.all_gather(input_offsets, axis).reshape(ranks, ranks, per_rank)
    y = jax_cxl.ragged_all_to_all(
        y,
        jnp.zeros_like(sent),
        first[:, me].ravel(),
        received,
        sender_offsets[:, me].ravel(),
        send_sizes,
        axis_name=axis,
    )
    return _weighted(y, slot, weights)


def stand_in(
    x: jax.Array, chosen: jax.Array, weights: jax.Array, experts: Experts, sizes: Sizes
) -> jax.Array:
    """Exchanges nothing, for measurements only: the experts get copies of this rank's tokens.

    The result has the right shape and wrong values.
    """
    per_rank = sizes.experts // jax.lax.axis_size(sizes.axis)
    needed = per_rank * sizes.capacity
    copies = jnp.tile(x, (-(-needed // len(x)), 1))[:needed]
    # The barriers keep XLA from dropping rows that are not used.
    rows = jax.lax.optimization_barrier(copies.reshape(per_rank, sizes.capacity, -1))
    y = jax.lax.optimization_barrier(experts(rows)).reshape(needed, -1)
    y = jnp.tile(y, (-(-len(x) // needed), 1))[: len(x)]
    return y * weights.sum(1, keepdims=True).astype(y.dtype)


def _before(chosen: jax.Array, experts: int) -> jax.Array:
    """Returns, for each choice of this rank's tokens, how many earlier choices have the same
    expert."""
    is_chosen = chosen.ravel()[:, None] == jnp.arange(experts)
    before = jnp.cumsum(is_chosen, 0, dtype=np.int32) - is_chosen
    return jnp.where(is_chosen, before, 0).sum(1)


def _weighted(y: jax.Array, slot: jax.Array, weights: jax.Array) -> jax.Array:
    """Returns the weighted sum of the results of each token's choices, (T, D).

    The result of a choice is row `slot` of y, or zeros if the slot is outside of y.
    """
    found = y.at[slot].get(mode="fill", fill_value=0).reshape(*weights.shape, y.shape[1])
    return jnp.sum(found * weights[..., None], 1, dtype=np.float32).astype(y.dtype)
