"""Decides where each byte of a tree goes, by a pure function, so that all processes agree.

If several devices hold a shard, they share its bytes, so that each byte is written once and all
processes share the work. If other jobs may view arrays in the memory, shards stay whole instead:
one device writes each shard. The bytes of a shard that one device writes are a part. The parts of a
process follow each other in its blocks. Each part starts at a multiple of 64 bytes.

All copies of a replicated array must be the same. Each process multiplies the checksum of each of
its copies by a factor, adds up the products, and writes the sums into its record. The factors of
the copies of a shard add up to 0. So the sums of all processes add up to 0 if the copies are the
same. If the copies differ, the total is 0 with a probability of 2**-64. No process waits for
another process.
"""

import dataclasses
import functools
import math
import struct
from collections.abc import Sequence
from typing import NamedTuple

from jax_cxl._store.memory import checksum, layout
from jax_cxl._store.trees.leaves import Leaf, Shard

_ALIGN = 64
WORD = (1 << 64) - 1


class Part(NamedTuple):
    """Bytes of a shard that one process writes.

    Attributes:
      holder: which of the devices that hold the shard writes the bytes.
      writer: the process of this device.
      offset: where the bytes begin in the writer's blocks, in bytes.
    """

    leaf: int
    shard: int
    holder: int
    writer: int
    start: int
    end: int
    offset: int

    def bytes_in(self, blocks: range) -> tuple[int, int]:
        """Returns from where to where the bytes are in some of the writer's blocks."""
        size = layout.BLOCK_BYTES
        end = self.offset + self.end - self.start
        return max(self.offset, blocks.start * size), min(end, blocks.stop * size)


@dataclasses.dataclass(frozen=True)
class Placement:
    """Where the bytes of a tree go. The parts of a shard are in the order of its bytes."""

    parts: tuple[Part, ...]
    data_bytes: tuple[int, ...]
    blocks_per_row: int

    def data_blocks(self, writer: int) -> int:
        return layout.blocks(self.data_bytes[writer])

    def rows(self, writer: int, directory_bytes: int) -> int:
        """Returns how many rows a writer takes. Those of writer 0 include the directory."""
        data = self.data_blocks(writer)
        total = data + layout.table_blocks(data)
        if writer == 0:
            total += layout.blocks(directory_bytes)
        return -(-total // self.blocks_per_row)

    def first_row(self, writer: int) -> int:
        """Returns the first row of a writer. Those of writer 0, with the directory, come last."""
        later = len(self.data_bytes) if writer == 0 else writer
        return sum(self.rows(other, 0) for other in range(1, later))

    def total_rows(self, directory_bytes: int) -> int:
        return self.first_row(0) + self.rows(0, directory_bytes)


def place(leaves: Sequence[Leaf], num_writers: int, blocks_per_row: int, whole: bool) -> Placement:
    """Places the bytes of these leaves; `whole` says whether shards stay whole."""
    parts = []
    ends = [0] * num_writers
    for number, leaf in enumerate(leaves):
        if not leaf.dtype:
            continue
        for shares in _shares(leaf.shards, leaf.itemsize, whole):
            if whole and shares:
                # The process that has the fewest bytes so far writes the shard.
                shares = (min(shares, key=lambda share: ends[share[2]]),)
            for shard, holder, writer, start, end in shares:
                parts.append(Part(number, shard, holder, writer, start, end, ends[writer]))
                ends[writer] += _round_up(end - start)
    return Placement(tuple(parts), tuple(ends), blocks_per_row)


_Share = tuple[int, int, int, int, int]  # the fields `shard` to `end` of a `Part`


@functools.lru_cache(1024)
def _shares(
    shards: tuple[Shard, ...], itemsize: int, whole: bool
) -> tuple[tuple[_Share, ...], ...]:
    """Returns, for each shard, the bytes that each of its holders writes.

    If shards stay whole, each holder gets all bytes of the shard here, and `place` then chooses one
    holder.
    """
    found = []
    for number, shard in enumerate(shards):
        size = math.prod(shard.shape) * itemsize
        count = len(shard.writers)
        bounds = [(0, size)] * count
        if not whole:
            bounds = [(_bound(size, i, count), _bound(size, i + 1, count)) for i in range(count)]
        shares = zip(range(count), shard.writers, bounds, strict=True)
        found.append(tuple((number, i, by, *bound) for i, by, bound in shares if len({*bound}) > 1))
    return tuple(found)


def _bound(size: int, i: int, holders: int) -> int:
    return min(size, _round_up(-(-size * i // holders)))


def _round_up(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN


class Copy(NamedTuple):
    """A copy of a shard that several devices hold.

    Attributes:
      column: number of the sum to which its checksum contributes. Neighboring leaves share a sum if
        there are more leaves than sums.
      factor: what to multiply its checksum by.
    """

    leaf: int
    shard: int
    holder: int
    column: int
    factor: int


def copies(leaves: Sequence[Leaf], writer: int) -> list[Copy]:
    """Returns the copies that a process has."""
    found = []
    for number, column in _columns(leaves).items():
        for index, shard in enumerate(leaves[number].shards):
            factors = _factors(number, index, len(shard.writers))
            for holder, (process, factor) in enumerate(zip(shard.writers, factors, strict=True)):
                if process == writer and len(shard.writers) > 1:
                    found.append(Copy(number, index, holder, column, factor))
    return found


def copied_leaves(leaves: Sequence[Leaf], columns: Sequence[int]) -> list[str]:
    """Returns the names of the leaves whose copies contribute to these columns."""
    return [leaves[n].name for n, column in _columns(leaves).items() if column in columns]


def _columns(leaves: Sequence[Leaf]) -> dict[int, int]:
    """Returns the column of each leaf that several devices hold."""
    replicated = [
        number
        for number, leaf in enumerate(leaves)
        if any(len(shard.writers) > 1 for shard in leaf.shards)
    ]
    return {
        number: position * layout.REPLICA_SUMS // max(layout.REPLICA_SUMS, len(replicated))
        for position, number in enumerate(replicated)
    }


def _factors(leaf: int, shard: int, count: int) -> list[int]:
    factors = [checksum.of(struct.pack("<3Q", leaf, shard, n)) for n in range(count - 1)]
    return [*factors, -sum(factors) & WORD]
