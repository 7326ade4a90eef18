"""Reads parts of arrays into GPUs: copy engines copy from the memory, and GPUs check the copies."""

import concurrent.futures
import dataclasses
import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from jax_cxl import errors
from jax_cxl._job import platforms
from jax_cxl._store.memory import dlpack, layout
from jax_cxl._store.reading import arranging
from jax_cxl._store.reading.restoring import Reader, overlaps, relative
from jax_cxl._store.trees import leaves

_LEAST_BYTES = layout.BLOCK_BYTES  # The host reads and checks smaller parts as fast.
_ALIGN = 64  # JAX takes arrays in `pinned_host` that begin at such addresses.
# Bytes that are copied together. Pieces lie on the GPU beside the arrays that they become, at most
# those of two such groups.
_TOGETHER_BYTES = 1 << 30


@dataclasses.dataclass(frozen=True)
class _Piece:
    """Elements that lie together in the blocks of a writer; `offset` is in bytes."""

    writer: int
    offset: int
    shape: tuple[int, ...]
    itemsize: int

    @property
    def end(self) -> int:
        return self.offset + math.prod(self.shape) * self.itemsize

    @property
    def whole(self) -> range:
        """The blocks all of whose bytes are in the piece."""
        return range(layout.blocks(self.offset), self.end // layout.BLOCK_BYTES)

    @property
    def edges(self) -> set[int]:
        """The other blocks of the piece."""
        first = self.offset // layout.BLOCK_BYTES
        return set(range(first, layout.blocks(self.end))) - set(self.whole)


@dataclasses.dataclass
class Copy:
    """A part of an array that a GPU copies.

    Attributes:
      reader: the version.
      pieces: what is copied.
      plan: how the GPU makes the part of the pieces; None if the piece is the part.
      dtype: the dtype.
      sharding: the GPU.
      made: the part, after `run`.
    """

    reader: Reader
    pieces: list[_Piece]
    plan: arranging.Plan | None
    dtype: np.dtype
    sharding: jax.sharding.Sharding
    made: jax.Array = dataclasses.field(init=False)

    @property
    def nbytes(self) -> int:
        """Bytes of all pieces."""
        return sum(piece.end - piece.offset for piece in self.pieces)

    def sources(self) -> list[jax.Array]:
        """Returns the pieces in `pinned_host` memory: they are the memory itself."""
        # In the memory of the same GPU, because JAX copies more slowly from that of another.
        (gpu,) = self.sharding.device_set
        ordinal = platforms.CUDA.ordinal(gpu)
        found = []
        for piece in self.pieces:
            own = self.reader.stripes[piece.writer]
            block, inside = divmod(piece.offset, layout.BLOCK_BYTES)
            device, offset = own.place(block)
            devices = own.section.devices
            _ = devices.copies  # This registers the memory.
            at = device, offset + inside
            array = dlpack.array(devices.core, at, piece.shape, self.dtype, ordinal, self.reader)
            found.append(jax.dlpack.from_dlpack(array))
        return found


def find(
    reader: Reader, leaf: leaves.Leaf, index: leaves.Index, sharding: jax.sharding.Sharding
) -> Copy | None:
    """Returns a part of an array that a GPU can copy; None if the host has to read it.

    Of each shard that has bytes of the part, a GPU copies the rows with these bytes. It cannot mend
    them by parity, and it takes lines from the caches of this host, so the host reads memory that
    nobody keeps coherent.

    Args:
      reader: the version.
      leaf: the array.
      index: start and end of the part along each dimension.
      sharding: the device to which the part goes.
    """
    section = reader.stripes[0].section
    one_piece = section.geometry.num_devices == 1 and not leaf.local
    if not _is_gpu(sharding) or not one_piece or not section.devices.coherent:
        return None
    dtype = leaves.dtype_of(leaf.dtype)
    shape = tuple(end - start for start, end in index)
    if dlpack.code_of(dtype) is None or math.prod(shape) * dtype.itemsize < _LEAST_BYTES:
        return None
    if max(shape) > np.iinfo(np.int32).max:
        return None  # JAX counts in 32 bits.
    pieces: list[_Piece] = []
    blocks = []
    for number, shard, common in overlaps(leaf, index):
        inside = relative(common, shard.index)
        first, last = inside[0]
        row = dtype.itemsize * math.prod(shard.shape[1:])
        begin = first * row // _ALIGN * _ALIGN
        some = list(_pieces(reader, leaf, number, (begin, last * row), dtype.itemsize))
        blocks.append(
            arranging.Block(
                pieces=len(some),
                skip=(first * row - begin) // dtype.itemsize,
                shape=(last - first, *shard.shape[1:]),
                here=((0, last - first), *inside[1:]),
                there=relative(common, index),
            )
        )
        pieces += some
    plan = arranging.Plan(shape, tuple(blocks))
    if plan.is_one_piece:
        whole = dataclasses.replace(pieces[0], shape=shape)
        return Copy(reader, [whole], None, dtype, sharding)
    return Copy(reader, pieces, plan, dtype, sharding)


def _pieces(
    reader: Reader, leaf: leaves.Leaf, number: int, wanted: tuple[int, int], itemsize: int
) -> Iterator[_Piece]:
    """Yields the pieces of a range of a shard's bytes."""
    for part in reader.parts_of_shard(leaf, number):
        start, end = max(wanted[0], part.start), min(wanted[1], part.end)
        if start < end:
            offset = part.offset + start - part.start
            yield _Piece(part.writer, offset, ((end - start) // itemsize,), itemsize)


def run(copies: Sequence[Copy]) -> None:
    """Copies all parts, checks the copies, and sets `made` of each.

    Blocks that a piece shares with others are checked in the memory, after the copy. So an error is
    raised if they changed before it.

    Raises:
      StoreError: a block is damaged.
    """
    started: tuple[list[Copy], list[list[jax.Array]]] | None = None
    for some in _groups(copies):
        sources = [copy.sources() for copy in some]
        targets = [[copy.sharding] * len(copy.pieces) for copy in some]
        under_way = some, jax.device_put(sources, targets)
        if started is not None:
            _finish(*started)
        started = under_way
    if started is not None:
        _finish(*started)


def _groups(copies: Sequence[Copy]) -> Iterator[list[Copy]]:
    some: list[Copy] = []
    for copy in copies:
        if some and sum(each.nbytes for each in some) + copy.nbytes > _TOGETHER_BYTES:
            yield some
            some = []
        some.append(copy)
    if some:
        yield some


def _finish(copies: list[Copy], made: list[list[jax.Array]]) -> None:
    """Checks the pieces of copies, and makes the parts of them."""
    reader = copies[0].reader
    edges: dict[int, set[int]] = {}
    by_gpu: dict[int, list[tuple[int, int, int]]] = {}
    for copy, arrays in zip(copies, made, strict=True):
        for piece, array in zip(copy.pieces, arrays, strict=True):
            (device,) = array.devices()
            start = array.block_until_ready().unsafe_buffer_pointer() - piece.offset
            by_gpu.setdefault(platforms.CUDA.ordinal(device), []).extend(
                (piece.writer, block, start + block * layout.BLOCK_BYTES) for block in piece.whole
            )
            edges.setdefault(piece.writer, set()).update(piece.edges)
        copy.made = arrays[0] if copy.plan is None else arranging.arrange(copy.plan, arrays)
    check = functools.partial(_check, reader)
    for _ in _threads().map(check, by_gpu.keys(), by_gpu.values()):
        pass  # Raises the error of a thread.
    for writer, some in edges.items():
        reader.check_blocks(writer, sorted(some))


def _check(reader: Reader, ordinal: int, blocks: Sequence[tuple[int, int, int]]) -> None:
    """Lets a GPU check blocks: of each the writer, the number, and the address of the copy."""
    copier = reader.stripes[0].section.devices.copies
    addresses = [address for _, _, address in blocks]
    found = copier.checksums(ordinal, addresses, layout.BLOCK_BYTES)
    for (writer, block, _), checksum in zip(blocks, found, strict=True):
        if checksum != reader.table(writer)[block]:
            raise reader.stripes[writer].damaged(block)


@functools.cache
def _threads() -> concurrent.futures.ThreadPoolExecutor:
    return concurrent.futures.ThreadPoolExecutor(8, "jax_cxl check")  # a GPU each


@functools.lru_cache(1024)
def _is_gpu(sharding: jax.sharding.Sharding) -> bool:
    device: Any
    (device,) = sharding.device_set
    if sharding.memory_kind not in (None, device.default_memory().kind):
        return False
    try:
        return platforms.of(device) is platforms.CUDA
    except errors.CxlError:
        return False
