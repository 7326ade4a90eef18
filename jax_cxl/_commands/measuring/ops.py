"""The operations: their shapes and their results.

The conventions are those of nccl-tests. A *block* is the data that one rank sends to, or gets from,
one other rank. The size of an operation is the size of the larger of a rank's two buffers.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from jax_cxl._sizes import format_size

# Inputs are integers below this value, so that sums are exact in any dtype and any order.
_VALUES = 4
# Inputs repeat after this many elements. It is a prime, so that no two blocks are equal.
_PERIOD = 1_000_003
# No collective gives this value, so it marks an element that was not written.
UNWRITTEN = 127
MAX_RANKS = (UNWRITTEN - 1) // (_VALUES - 1)


@dataclasses.dataclass(frozen=True)
class Op:
    """An operation of the benchmark. Functions without listed arguments take the number of ranks.

    Attributes:
      result: function (ranks, rank, block elements) -> expected output, or None if the output is
        not defined on that rank.
    """

    name: str
    blocks_in: Callable[[int], int]
    blocks_out: Callable[[int], int]
    result: Callable[[int, int, int], np.ndarray | None]

    @property
    def sums(self) -> bool:
        return self.name in ("psum", "psum_scatter", "reduce", "pscan")

    @property
    def sized(self) -> bool:
        """Whether the operation moves data. A barrier moves none, and has one element."""
        return self.name != "barrier"

    def bus_factor(self, ranks: int) -> float:
        """Returns bus bandwidth divided by algorithm bandwidth, both as in nccl-tests."""
        others = (ranks - 1) / ranks
        if self.name == "psum":
            return 2 * others
        return others if self.blocks(ranks) > 1 else 1.0

    def blocks(self, ranks: int) -> int:
        """Returns the number of blocks in the larger buffer."""
        return max(self.blocks_in(ranks), self.blocks_out(ranks))


@dataclasses.dataclass(frozen=True)
class Shape:
    """A measured case: an operation on blocks of `count` elements."""

    op: Op
    ranks: int
    rank: int
    count: int
    dtype: Any

    def __str__(self) -> str:
        return f"{self.op.name} {format_size(self.bytes)}"

    @property
    def bytes(self) -> int:
        """Bytes of the larger of a rank's two buffers, as in nccl-tests."""
        blocks = self.op.blocks(self.ranks) if self.op.sized else 0
        return blocks * self.count * self.dtype.itemsize

    def input(self) -> np.ndarray:
        count = self.op.blocks_in(self.ranks) * self.count
        return values(self.rank, 0, count).astype(self.dtype)

    def expected(self) -> np.ndarray | None:
        """Returns this rank's expected output, or None if it is undefined."""
        result = self.op.result(self.ranks, self.rank, self.count)
        return None if result is None else result.astype(self.dtype)


def values(rank: int, first: int, count: int) -> np.ndarray:
    """Returns elements [first, first + count) of a rank's input."""
    # Copying a table is much faster than computing the values, which matters for a gigabyte.
    return np.resize(np.roll(_table(rank), -first), count)


@functools.cache
def _table(rank: int) -> np.ndarray:
    return np.random.default_rng(rank).integers(_VALUES, size=_PERIOD, dtype=np.int32)


def _one(_: int) -> int:
    return 1


def _each(ranks: int) -> int:
    return ranks


def _total(ranks: int, first: int, count: int) -> np.ndarray:
    return functools.reduce(np.add, (values(rank, first, count) for rank in range(ranks)))


def _joined(ranks: int, first: int, count: int) -> np.ndarray:
    return np.concatenate([values(rank, first, count) for rank in range(ranks)])


_ALL = (
    Op("all_gather", _one, _each, lambda n, r, count: _joined(n, 0, count)),
    Op("psum", _one, _one, lambda n, r, count: _total(n, 0, count)),
    Op("psum_scatter", _each, _one, lambda n, r, count: _total(n, r * count, count)),
    Op("all_to_all", _each, _each, lambda n, r, count: _joined(n, r * count, count)),
    Op("broadcast", _one, _one, lambda n, r, count: values(0, 0, count)),
    Op("reduce", _one, _one, lambda n, r, count: _total(n, 0, count) if r == 0 else None),
    Op("gather", _one, _each, lambda n, r, count: _joined(n, 0, count) if r == 0 else None),
    Op("scatter", _each, _one, lambda n, r, count: values(0, r * count, count)),
    Op("ppermute", _one, _one, lambda n, r, count: values((r - 1) % n, 0, count)),
    Op("pscan", _one, _one, lambda n, r, count: _total(r + 1, 0, count)),
    Op("barrier", _one, _one, lambda n, r, count: values(r, 0, count)),
)


OPS = {op.name: op for op in _ALL}
