"""Finds the bytes of saved shards in the memory, as contiguous pieces."""

import dataclasses
from collections.abc import Iterable

import numpy as np

from jax_cxl._store.memory import layout
from jax_cxl._store.reading.restoring import Reader

_ALIGN = 64  # In `pinned_host`, JAX takes arrays that begin at multiples of this.


@dataclasses.dataclass(frozen=True)
class Piece:
    """Elements that are contiguous in the memory.

    Attributes:
      whole: an array with a row for each block that is entirely in the piece: the number of the
        block, and its offset in the piece in bytes.
      edges: blocks of which the piece contains only a part.
    """

    writer: int
    at: tuple[int, int]
    shape: tuple[int, ...]
    whole: np.ndarray
    edges: set[int]


def find(
    reader: Reader, writer: int, start: int, end: int, dtype: np.dtype
) -> tuple[list[Piece], tuple[int, int]]:
    """Returns the pieces with a range of a writer's bytes.

    Also returns the pair for these pieces that the argument `places` of `arranging.arrange` needs.
    """
    several = reader.stripes[writer].section.geometry.num_devices > 1
    return (_striped if several else _together)(reader, writer, start, end, dtype.itemsize)


def _together(
    reader: Reader, writer: int, start: int, end: int, itemsize: int
) -> tuple[list[Piece], tuple[int, int]]:
    """Does what `find` does, if the memory has one device."""
    size = layout.BLOCK_BYTES
    begin = start // _ALIGN * _ALIGN
    block, inside = divmod(begin, size)
    device, offset = reader.stripes[writer].place(block)
    whole = range(layout.blocks(begin), end // size)
    piece = Piece(
        writer,
        (device, offset + inside),
        ((end - begin) // itemsize,),
        _rows((each, each * size - begin) for each in whole),
        set(range(block, layout.blocks(end))) - set(whole),
    )
    return [piece], (0, (start - begin) // itemsize)


def _striped(
    reader: Reader, writer: int, start: int, end: int, itemsize: int
) -> tuple[list[Piece], tuple[int, int]]:
    """Does what `find` does if the memory has several devices. Pieces have whole rows of blocks."""
    size = layout.BLOCK_BYTES
    own = reader.stripes[writer]
    count = own.section.geometry.num_devices
    wanted = range(start // size, layout.blocks(end))
    first, last = wanted.start // count, -(-wanted.stop // count)
    whole: list[list[tuple[int, int]]] = [[] for _ in range(count)]
    for block in wanted:
        whole[own.place(block)[0]].append((block, (block // count - first) * size))
    shape = ((last - first) * size // itemsize,)
    pieces = [
        Piece(writer, (device, own.offset(first)), shape, _rows(whole[device]), set())
        for device in range(count)
    ]
    skip = (start - first * count * size) // itemsize
    return pieces, (own.place(first * count)[0], skip)


def _rows(blocks: Iterable[tuple[int, int]]) -> np.ndarray:
    return np.array(list(blocks), np.int64).reshape(-1, 2)
