"""Decides where each byte of a tree goes: a pure function, the same on all processes.

If several devices hold a shard, they share its bytes, so that each byte is written once and all
processes share the work. Trees that others view in the memory have whole shards instead, each of
which one device writes. The parts of a process follow each other in its blocks. Each part starts
at a multiple of 64 bytes.
"""

import dataclasses
import math
from collections.abc import Sequence

from jax_cxl._store.memory import layout
from jax_cxl._store.trees.leaves import Leaf

_ALIGN = 64


@dataclasses.dataclass(frozen=True)
class Part:
    """Bytes of a shard that one process writes.

    Attributes:
      leaf: number of the leaf.
      shard: number of its shard.
      holder: number of the holder of the shard that writes them.
      writer: the process of this holder.
      start: first byte, in the shard's bytes in row-major order.
      end: byte after the last byte.
      offset: where they begin in the writer's blocks, in bytes.
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
        """Returns how many rows a writer takes, with the directory of writer 0."""
        data = self.data_blocks(writer)
        total = data + layout.table_blocks(data)
        if writer == 0:
            total += layout.blocks(directory_bytes)
        return -(-total // self.blocks_per_row)

    def first_row(self, writer: int) -> int:
        """Returns the first row of a writer. Writer 0 is last: its directory may have any size."""
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
        for shard_number, shard in enumerate(leaf.shards):
            size = math.prod(shard.shape) * leaf.itemsize
            holders = len(shard.writers)
            if whole:
                # The process that has the fewest bytes so far.
                chosen = min(range(holders), key=lambda i: (ends[shard.writers[i]], i))
            for holder, writer in enumerate(shard.writers):
                start, end = (_bound(size, i, holders) for i in (holder, holder + 1))
                if whole:
                    start, end = 0, size if holder == chosen else 0
                if start == end:
                    continue
                parts.append(Part(number, shard_number, holder, writer, start, end, ends[writer]))
                ends[writer] += _round_up(end - start)
    return Placement(tuple(parts), tuple(ends), blocks_per_row)


def _bound(size: int, i: int, holders: int) -> int:
    return min(size, _round_up(-(-size * i // holders)))


def _round_up(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN
