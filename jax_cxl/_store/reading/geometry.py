"""Where parts of arrays lie: which rows of which shards, and which blocks hold them."""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from jax_cxl import errors
from jax_cxl._store.memory import layout
from jax_cxl._store.trees import leaves, place


class Rows(NamedTuple):
    """Contiguous elements of a saved shard, and which of them belong to a part of an array.

    Attributes:
      shard: number of the shard.
      start: how many elements of the shard come before the rows.
      here: where the wanted elements are in the rows: start and end along each dimension.
      there: where they are in the part of the array.
    """

    shard: int
    start: int
    shape: tuple[int, ...]
    here: leaves.Index
    there: leaves.Index

    @property
    def is_whole(self) -> bool:
        """Whether all of their elements are wanted."""
        return shape_of(self.here) == self.shape


def rows(leaf: leaves.Leaf, index: leaves.Index, most: float = math.inf) -> list[Rows]:
    """Returns what to read of the shards for a part of an array.

    Not more than `most` unwanted elements lie between two that are wanted.
    """
    found = []
    covered = 0
    for number, shard in enumerate(leaf.shards):
        common = tuple(
            (max(a, c), min(b, d)) for (a, b), (c, d) in zip(index, shard.index, strict=True)
        )
        if any(start >= end for start, end in common):
            continue
        covered += math.prod(shape_of(common))
        for part in _split(relative(common, shard.index), shard.shape, most):
            bounds = _rows_of(part, shard.shape)
            here, there = relative(part, bounds), relative(part, relative(index, shard.index))
            start = sum(a * math.prod(shard.shape[d + 1 :]) for d, (a, _) in enumerate(bounds))
            found.append(Rows(number, start, shape_of(bounds), here, there))
    if covered != math.prod(shape_of(index)):
        raise errors.StoreError(
            f"{leaf.name}: the shards do not cover the array: restore an older version of the data"
        )
    return found


def _split(part: leaves.Index, shape: tuple[int, ...], most: float) -> Iterator[leaves.Index]:
    bounds = _rows_of(part, shape)
    first = next((d for d, (start, end) in enumerate(part) if end - start > 1), 0)
    if part == bounds or math.prod(shape[first + 1 :]) <= most:
        yield part
        return
    for at in range(*part[first]):
        yield from _split((*part[:first], (at, at + 1), *part[first + 1 :]), shape, most)


def _rows_of(part: leaves.Index, shape: tuple[int, ...]) -> leaves.Index:
    """Returns the smallest contiguous part of an array that has all elements of a part."""
    first = next((d for d, (start, end) in enumerate(part) if end - start > 1), len(shape))
    return (*part[: first + 1], *((0, n) for n in shape[first + 1 :]))


def shape_of(index: leaves.Index) -> tuple[int, ...]:
    """Returns the shape of a part of an array."""
    return tuple(end - start for start, end in index)


def slices(index: leaves.Index) -> tuple[slice, ...]:
    """Returns a part of an array as NumPy and PyTorch take it."""
    return tuple(slice(*bounds) for bounds in index)


def relative(part: leaves.Index, to: leaves.Index) -> leaves.Index:
    """Returns the index of `part` relative to the start of `to`."""
    return tuple((a - c, b - c) for (a, b), (c, _) in zip(part, to, strict=True))


def blocks_of(part: place.Part) -> range:
    """Returns the blocks that hold a part."""
    end = part.offset + part.end - part.start
    return range(part.offset // layout.BLOCK_BYTES, layout.blocks(end))


def whole_blocks(start: int, end: int) -> tuple[range, set[int]]:
    """Returns the blocks that are entirely in a range of bytes, and those that are partly in it."""
    size = layout.BLOCK_BYTES
    whole = range(layout.blocks(start), end // size)
    return whole, set(range(start // size, layout.blocks(end))).difference(whole)


def consecutive(blocks: np.ndarray | range, most: int | None = None) -> Iterator[range]:
    """Splits ascending block numbers into runs of consecutive numbers, of at most `most` each."""
    if isinstance(blocks, range):
        runs = [blocks]
    else:
        split = np.split(blocks, np.flatnonzero(np.diff(blocks) != 1) + 1)
        runs = [range(int(run[0]), int(run[-1]) + 1) for run in split if len(run)]
    for run in runs:
        for start in range(0, len(run), most or max(1, len(run))):
            yield run[start : start + (most or len(run))]
