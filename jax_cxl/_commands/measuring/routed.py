"""Operations that move rows according to a router's choices, and their expected results.

Every rank has T tokens and 4 experts. Each token chooses 2 of the experts of all ranks.
`ragged_all_to_all` and `take_rows` bring a token to the rank of its first choice. `moe_dispatch`
brings it to both of its experts, and `moe_combine` brings their results back, with weights of 1.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np

NAMES = ("ragged_all_to_all", "take_rows", "moe_dispatch", "moe_combine")
ROUTINGS = ("uniform", "skewed", "hot")
CHOICES = 2
_EXPERTS_PER_RANK = 4
# A row has _WIDTH elements. If a rank would then have fewer than _ROWS rows, its rows are shorter.
_WIDTH, _ROWS = 1024, 32


def choose(routing: str, ranks: int, tokens: int, choices: int, experts: int) -> np.ndarray:
    """Returns the experts that each token of each rank chooses, all different for one token.

    The result is an int32 array of shape (ranks, tokens, choices).

    Args:
      routing: "uniform"; "skewed", in which a fifth of the experts gets 80% of the choices; or
        "hot", in which every token chooses expert 0, and its other choices are uniform.
      ranks: number of ranks.
      tokens: number of tokens of each rank.
      choices: how many experts each token chooses.
      experts: number of experts of all ranks together.
    """
    rng = np.random.default_rng(0)
    odds = np.ones(experts)
    if routing == "skewed":
        often = max(1, round(experts / 5))
        odds[:often], odds[often:] = 0.8 / often, 0.2 / (experts - often)
    # Draw without replacement by Gumbel's trick: a token chooses the experts with its largest keys.
    keys = np.log(odds) + rng.gumbel(size=(ranks, tokens, experts))
    if routing == "hot":
        keys[..., 0] = np.inf
    return np.argsort(-keys, -1)[..., :choices].astype(np.int32)


def row_width(count: int) -> int:
    """Returns the number of elements of a row, if a rank's tokens together have `count` elements.

    It is a power of two.
    """
    return min(1 << max((count // _ROWS).bit_length() - 1, 0), _WIDTH)


def rounded(count: int) -> int:
    """Returns `count`, a number of elements, rounded down to whole rows."""
    return count - count % row_width(count)


@dataclasses.dataclass(frozen=True)
class Routing:
    """Where the tokens of all ranks go. Each rank has T tokens.

    Attributes:
      chosen: (ranks, T, CHOICES): the experts that each token chooses.
      goes: (ranks, T): the rank to which each token goes. The tokens of a rank go to the ranks of
        their first choices, but these targets are sorted in ascending order.
      wants: (ranks, T, ranks): whether a rank (last axis) has an expert that a token chooses.
    """

    chosen: np.ndarray
    goes: np.ndarray
    wants: np.ndarray

    def assignments(self, rank: int) -> np.ndarray:
        """Returns which choices of all tokens are experts that `rank` holds, ordered by expert.

        A choice is given by its index in the flattened `chosen`.
        """
        experts = range(rank * _EXPERTS_PER_RANK, (rank + 1) * _EXPERTS_PER_RANK)
        return np.concatenate([np.flatnonzero(self.chosen.ravel() == e) for e in experts])

    def arrivals(self, rank: int) -> np.ndarray:
        """Returns which tokens go to `rank`, as indices in the flattened `goes`."""
        return np.flatnonzero(self.goes.ravel() == rank)


@functools.cache
def of(routing: str, ranks: int, tokens: int) -> Routing:
    """Returns where the tokens of each rank go."""
    experts = ranks * _EXPERTS_PER_RANK
    if routing == "uniform" and tokens < _ROWS:
        # With few tokens, random choices might send a rank more rows than its buffer has room for.
        # So choose the experts in turn.
        turns = np.arange(ranks * tokens * CHOICES, dtype=np.int32) % experts
        chosen = turns.reshape(ranks, tokens, CHOICES)
    else:
        chosen = choose(routing, ranks, tokens, CHOICES, experts)
    holder = chosen // _EXPERTS_PER_RANK
    goes = np.sort(holder[..., 0], 1)
    wants = (holder[..., None] == np.arange(ranks)).any(2)
    return Routing(chosen, goes, wants)


def blocks(name: str, routing: str) -> Callable[[int], int]:
    """Returns a function from the number of ranks to the size of a rank's buffer of received rows.

    The size is a number of blocks of T rows. If the routing is uniform, the buffer has room for
    twice the mean number of rows that a rank receives. Otherwise it has room for the rows of all
    ranks.
    """
    choices = CHOICES if name.startswith("moe") else 1
    return lambda ranks: choices * (min(ranks, 2) if routing == "uniform" else ranks)


def pool(name: str, routing: str, ranks: int, count: int) -> list[tuple[float, float]]:
    """Returns, for each rank, how many blocks of T rows it must write to the pool and read."""
    tokens = count // row_width(count)
    found = of(routing, ranks, tokens)
    to = found.wants if name.startswith("moe") else found.goes[..., None] == np.arange(ranks)
    crosses = to & ~np.eye(ranks, dtype=bool)[:, None]
    once, sent, received = crosses.any(2).sum(1), crosses.sum((1, 2)), crosses.sum((0, 1))
    written, read = (received, sent) if name == "moe_combine" else (once, received)
    return list(zip(written / tokens, read / tokens, strict=True))


def result(name: str, routing: str, ranks: int, rank: int, count: int, values: Any) -> np.ndarray:
    """Returns a rank's expected output; the arguments are those of `ops.Op.result`."""
    width = row_width(count)
    tokens = count // width
    found = of(routing, ranks, tokens)
    room = blocks(name, routing)(ranks) * tokens

    def rows_of(source: int, rows: int) -> np.ndarray:
        return values(source, 0, rows * width).reshape(rows, width)

    if name == "moe_combine":
        total = np.zeros((tokens, width), np.int32)
        for holder in map(int, np.flatnonzero(found.wants[rank].any(0))):
            token = found.assignments(holder) // CHOICES
            mine = token // tokens == rank
            y = rows_of(holder, room)[: len(token)]
            np.add.at(total, token[mine] % tokens, y[mine])
        return total.ravel()
    token = found.assignments(rank) // CHOICES if name == "moe_dispatch" else found.arrivals(rank)
    rows = np.zeros((room, width), np.int32)
    for source in map(int, np.unique(token // tokens)):
        here = np.flatnonzero(token // tokens == source)
        rows[here] = rows_of(source, tokens)[token[here] % tokens]
    return rows.ravel()


def prepare(name: str, routing: str, ranks: int, count: int, axis: str) -> Callable[[Any], Any]:
    """Returns a function that runs the operation on a rank's value.

    JAX must be tracing the program when this is called. For `moe_combine`, `prepare` itself runs
    the dispatch that makes the handle, so the measured calls do not include the dispatch.
    """
    # JAX is imported only here, because the command line imports this module before the launcher
    # forks, and the launcher must not import JAX.
    import jax
    import jax.numpy as jnp

    import jax_cxl

    width = row_width(count)
    tokens = count // width
    found = of(routing, ranks, tokens)
    room = blocks(name, routing)(ranks) * tokens
    me = jax.lax.axis_index(axis)

    def mine(of_ranks: np.ndarray) -> Any:
        return jnp.asarray(of_ranks)[me]

    if name.startswith("moe"):
        chosen, experts = mine(found.chosen), ranks * _EXPERTS_PER_RANK

        def dispatch(x: Any) -> Any:
            x = x.reshape(tokens, width)
            return jax_cxl.moe_dispatch(x, chosen, axis, num_experts=experts, max_rows=room)

        if name == "moe_dispatch":
            return lambda x: dispatch(x)[0].ravel()
        _, handle = dispatch(jnp.zeros(count, np.float32))
        ones = jnp.ones(chosen.shape, np.float32)
        return lambda y: jax_cxl.moe_combine(y.reshape(room, width), ones, handle).ravel()

    if name == "take_rows":
        indices = np.full((ranks, room), -1, np.int32)
        for rank in range(ranks):
            token = found.arrivals(rank)
            indices[rank, : len(token)] = token
        published = found.goes != np.arange(ranks)[:, None]
        return lambda x: jax_cxl.take_rows(
            x.reshape(tokens, width), mine(indices), axis, published=mine(published)
        ).ravel()

    sizes = (found.goes[..., None] == np.arange(ranks)).sum(1)  # by sender and receiver
    first, to = np.cumsum(sizes, 1) - sizes, np.cumsum(sizes, 0) - sizes
    table = np.stack([first, sizes, to, sizes.T], 1).astype(np.int32)

    def exchange(x: Any) -> Any:
        zeros = jnp.zeros((room, width), x.dtype)
        columns = mine(table)
        return jax_cxl.ragged_all_to_all(
            x.reshape(tokens, width), zeros, *columns, axis_name=axis
        ).ravel()

    return exchange
