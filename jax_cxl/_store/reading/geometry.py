"""Where parts of arrays lie: which shards, which runs of bytes and which blocks hold them."""

import math
from collections.abc import Iterator

import numpy as np

from jax_cxl import errors
from jax_cxl._store.memory import layout
from jax_cxl._store.trees import leaves, place


def overlaps(
    leaf: leaves.Leaf, index: leaves.Index
) -> list[tuple[int, leaves.Shard, leaves.Index]]:
    """Returns the shards that overlap a part of an array.

    An entry is the number of a shard, the shard, and its overlap with the part.
    """
    found = []
    covered = 0
    for number, shard in enumerate(leaf.shards):
        common = tuple(
            (max(a, c), min(b, d)) for (a, b), (c, d) in zip(index, shard.index, strict=True)
        )
        if all(start < end for start, end in common):
            found.append((number, shard, common))
            covered += math.prod(end - start for start, end in common)
    if covered != math.prod(end - start for start, end in index):
        raise errors.StoreError(
            f"{leaf.name}: the shards do not cover the array: restore an older version of the data"
        )
    return found


def relative(part: leaves.Index, to: leaves.Index) -> leaves.Index:
    """Returns the index of `part` relative to the start of a larger part, `to`."""
    return tuple((a - c, b - c) for (a, b), (c, _) in zip(part, to, strict=True))


def elements_before(shape: tuple[int, ...], here: leaves.Index) -> int | None:
    """Returns how many elements come before a part of an array; None if it is not contiguous."""
    first = next((d for d, (start, end) in enumerate(here) if end - start != 1), len(shape))
    if any(here[d] != (0, shape[d]) for d in range(first + 1, len(shape))):
        return None
    return sum(start * math.prod(shape[d + 1 :]) for d, (start, _) in enumerate(here))


def byte_runs(
    shape: tuple[int, ...], itemsize: int, here: tuple[slice, ...]
) -> tuple[np.ndarray, int]:
    """Splits a part of an array, `here`, into runs of bytes: where they begin, and their length."""
    length, dim = itemsize, len(shape)
    while dim > 0:
        dim -= 1
        length *= here[dim].stop - here[dim].start
        if here[dim] != slice(0, shape[dim]):
            break
    strides = [itemsize * math.prod(shape[d + 1 :]) for d in range(len(shape))]
    starts = np.zeros(1, np.int64)
    for d in range(dim):
        steps = np.arange(here[d].start, here[d].stop, dtype=np.int64) * strides[d]
        starts = (starts[:, None] + steps).reshape(-1)
    first = here[dim].start * strides[dim] if shape else 0
    return starts + first, length


def all_blocks_of(part: place.Part) -> range:
    """Returns the blocks that hold a part."""
    end = part.offset + part.end - part.start
    return range(part.offset // layout.BLOCK_BYTES, layout.blocks(end))


def whole_blocks(start: int, end: int) -> tuple[range, set[int]]:
    """Returns the blocks that are entirely in a range of bytes, and those that are partly in it."""
    size = layout.BLOCK_BYTES
    whole = range(layout.blocks(start), end // size)
    return whole, set(range(start // size, layout.blocks(end))).difference(whole)


def blocks_of(part: place.Part, starts: np.ndarray, length: int) -> np.ndarray:
    """Returns the blocks that hold those bytes of a part which lie in the given runs."""
    base = part.offset - part.start
    begins = np.maximum(starts, part.start) + base
    ends = np.minimum(starts + length, part.end) + base
    some = begins < ends
    first = begins[some] // layout.BLOCK_BYTES
    last = (ends[some] - 1) // layout.BLOCK_BYTES
    if not len(first):
        return np.empty(0, np.int64)
    wanted = np.zeros(last.max() - first.min() + 2, np.int64)
    np.add.at(wanted, first - first.min(), 1)
    np.add.at(wanted, last - first.min() + 1, -1)
    return np.flatnonzero(np.cumsum(wanted)[:-1]) + first.min()


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
