"""The operations: their shapes, their results, and the bytes that they must at least move.

The conventions are those of nccl-tests. A *block* is the data that one rank sends to, or gets from,
one other rank. The size of an operation is the size of the larger of a rank's two buffers.
"""

import dataclasses
import functools
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from jax_cxl._commands.bench import routed

# Inputs are integers below this value, so that sums are exact in any dtype and any order.
_VALUES = 4
# Inputs repeat after this many elements. It is a prime, so that no two blocks are equal.
_PERIOD = 1_000_003
# No collective gives this value, so it marks an element that was not written.
UNWRITTEN = 127
MAX_RANKS = (UNWRITTEN - 1) // (_VALUES - 1)


@dataclasses.dataclass(frozen=True)
class PoolBytes:
    """Blocks that a rank writes to the pool and reads from it."""

    written: Fraction
    read: Fraction


@dataclasses.dataclass(frozen=True)
class Op:
    """An operation. The functions take the number of ranks.

    Attributes:
      name: name of the function in jax_cxl.
      reduces: whether it sums.
      blocks_in: number of blocks in a rank's input.
      blocks_out: number of blocks in a rank's output.
      bus_factor: bus bandwidth over algorithm bandwidth.
      pool: function (ranks, block elements) -> lower bounds for the ranks that move the most data.
      result: function (ranks, rank, block elements, values) -> expected output, None if the output
        is not defined on that rank. `values` is a function (rank, first element, elements) ->
        integers.
      rounded: function that rounds a number of elements down to a possible block size.
      sized: whether it moves data. A barrier does not, and has one element.
    """

    name: str
    reduces: bool
    blocks_in: Callable[[int], int]
    blocks_out: Callable[[int], int]
    bus_factor: Callable[[int], Fraction]
    pool: Callable[[int, int], list[PoolBytes]]
    result: Callable[[int, int, int, Any], np.ndarray | None]
    rounded: Callable[[int], int] = lambda count: count
    sized: bool = True

    def blocks(self, ranks: int) -> int:
        """Returns the number of blocks in the larger buffer."""
        return max(self.blocks_in(ranks), self.blocks_out(ranks))

    def expected(self, ranks: int, rank: int, count: int, dtype: Any) -> np.ndarray | None:
        """Returns the output of a rank for blocks of `count` elements, None if it is undefined."""
        result = self.result(ranks, rank, count, values)
        return None if result is None else result.astype(dtype)

    def receives(self, ranks: int, rank: int) -> bool:
        """Returns whether a rank waits for data of other ranks, or for the ranks in a barrier."""
        if not self.sized:
            return True
        sources = set()

        def of(source: int, first: int, count: int) -> np.ndarray:
            sources.add(source)
            return values(source, first, count)

        self.result(ranks, rank, 1, of)
        return bool(sources - {rank})


def values(rank: int, first: int, count: int) -> np.ndarray:
    """Returns elements [first, first + count) of a rank's input."""
    table = _table(rank)
    # For a gigabyte, copying a table piece by piece is much faster than computing.
    out = np.empty(count, np.int32)
    done = 0
    while done < count:
        piece = table[(first + done) % _PERIOD :][: count - done]
        out[done : done + len(piece)] = piece
        done += len(piece)
    return out


@functools.cache
def _table(rank: int) -> np.ndarray:
    position = np.arange(_PERIOD, dtype=np.uint32)
    scattered = (position * np.uint32(2654435761)) >> np.uint32(13)
    return ((scattered + np.uint32(5 * rank)) % np.uint32(_VALUES)).astype(np.int32)


def _one(_: int) -> int:
    return 1


def _each(ranks: int) -> int:
    return ranks


def _pool(*shares: tuple[Any, Any]) -> list[PoolBytes]:
    return [PoolBytes(Fraction(written), Fraction(read)) for written, read in shares]


def _total(ranks: int, first: int, count: int, of: Any) -> np.ndarray:
    return sum(of(rank, first, count) for rank in range(ranks))


def _joined(ranks: int, first: int, count: int, of: Any) -> np.ndarray:
    return np.concatenate([of(rank, first, count) for rank in range(ranks)])


def _all(_: int) -> Fraction:
    return Fraction(1)


def _others(ranks: int) -> Fraction:
    return Fraction(ranks - 1, ranks)


# The blocks of `pool` are equal to plan::LowerBound (cc/simulator/bounds.cc).
_ALL = (
    Op(
        *("all_gather", False, _one, _each, _others),
        lambda n, _: _pool((1, n - 1)),
        lambda n, r, count, of: _joined(n, 0, count, of),
    ),
    Op(
        *("psum", True, _one, _one, lambda n: 2 * _others(n)),
        lambda n, _: _pool((1, 2 * _others(n))),
        lambda n, r, count, of: _total(n, 0, count, of),
    ),
    Op(
        *("psum_scatter", True, _each, _one, _others),
        lambda n, _: _pool((n - 1, n - 1)),
        lambda n, r, count, of: _total(n, r * count, count, of),
    ),
    Op(
        *("all_to_all", False, _each, _each, _others),
        lambda n, _: _pool((n - 1, n - 1)),
        lambda n, r, count, of: _joined(n, r * count, count, of),
    ),
    Op(
        *("broadcast", False, _one, _one, _all),
        lambda n, _: _pool((1, 0), (0, 1)),
        lambda n, r, count, of: of(0, 0, count),
    ),
    Op(
        *("reduce", True, _one, _one, _all),
        lambda n, _: _pool((1, 0), (0, 1)) if n == 2 else _pool((1, 1)),
        lambda n, r, count, of: _total(n, 0, count, of) if r == 0 else None,
    ),
    Op(
        *("gather", False, _one, _each, _others),
        lambda n, _: _pool((1, 0), (0, n - 1)),
        lambda n, r, count, of: _joined(n, 0, count, of) if r == 0 else None,
    ),
    Op(
        *("scatter", False, _each, _one, _others),
        lambda n, _: _pool((n - 1, 0), (0, 1)),
        lambda n, r, count, of: of(0, r * count, count),
    ),
    Op(
        *("ppermute", False, _one, _one, _all),
        lambda n, _: _pool((1, 1)),
        lambda n, r, count, of: of((r - 1) % n, 0, count),
    ),
    Op(
        *("pscan", True, _one, _one, _all),
        lambda n, _: _pool((0, n - 1), (1, n - 2)),
        lambda n, r, count, of: _total(r + 1, 0, count, of),
    ),
    Op(
        *("barrier", False, _one, _one, _all),
        lambda n, _: _pool((0, 0)),
        lambda n, r, count, of: of(r, 0, count),
        sized=False,
    ),
)


def _routed(name: str, routing: str) -> Op:
    """Returns an operation that moves rows as a router chose; uniform routings have no suffix."""
    room = routed.blocks(routing, name.startswith("moe"))
    sent, received = (room, _one) if name == "moe_combine" else (_one, room)
    return Op(
        name=name if routing == "uniform" else f"{name}:{routing}",
        reduces=False,
        blocks_in=sent,
        blocks_out=received,
        bus_factor=_others,
        pool=lambda n, count: _pool(*routed.pool_shares(name, routing, n, count)),
        result=functools.partial(routed.result, name, routing),
        rounded=routed.rounded,
    )


_ROUTED = [_routed(name, routing) for name in routed.NAMES for routing in routed.ROUTINGS]
OPS = {op.name: op for op in (*_ALL, *_ROUTED)}
