"""Decides where each byte of a tree goes, by a pure function, so that all processes agree.

If several devices hold a shard, they share its bytes, so that each byte is written once and all
processes share the work. If other jobs may view arrays in the memory, shards stay whole instead:
one device writes each shard. The bytes of a shard that one device writes are a part. The parts of a
process follow each other in its blocks. Each part starts at a multiple of 64 bytes.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

from jax_cxl._store.memory import layout
from jax_cxl._store.trees.leaves import Leaf, Shard

_ALIGN = 64


class Part(NamedTuple):
    """Bytes of a shard that one process writes.

    Attributes:
      leaf: number of the leaf.
      shard: number of the shard among the shards of this leaf.
      holder: which of the devices that hold the shard writes the bytes.
      writer: the process of this device.
      start: first byte, in the shard's bytes in row-major order.
      end: byte after the last byte.
      offset: where the bytes begin in the writer's blocks, in bytes.
    """

    leaf: int
    shard: int
    holder: int
    writer: int
    start: int
    end: int
    offset: int


@dataclasses.dataclass(frozen=True)
class Placement:
    """Where the bytes of a tree go.

    Attributes:
      parts: all parts. The parts of a shard are in the order of its bytes.
      data_bytes: bytes of data of each writer.
      blocks_per_row: blocks of data in a row of the memory.
    """

    parts: tuple[Part, ...]
    data_bytes: tuple[int, ...]
    blocks_per_row: int

    def data_blocks(self, writer: int) -> int:
        """Returns how many blocks the data of a writer take."""
        return layout.blocks(self.data_bytes[writer])

    def rows(self, writer: int, directory_bytes: int) -> int:
        """Returns how many rows a writer takes. Those of writer 0 include the directory."""
        data = self.data_blocks(writer)
        total = data + layout.table_blocks(data)
        if writer == 0:
            total += layout.blocks(directory_bytes)
        return -(-total // self.blocks_per_row)

    def first_row(self, writer: int) -> int:
        """Returns the first row of a writer.

        The rows of writer 0 come last, because they include the directory, which may have any size.
        """
        later = len(self.data_bytes) if writer == 0 else writer
        return sum(self.rows(other, 0) for other in range(1, later))

    def total_rows(self, directory_bytes: int) -> int:
        """Returns how many rows the snapshot takes."""
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
