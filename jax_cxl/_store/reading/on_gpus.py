"""Reads parts of arrays into GPUs: copy engines copy from the memory, and GPUs check the copies."""

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
from jax_cxl._store.reading import arranging, pieces
from jax_cxl._store.reading.geometry import overlaps, relative
from jax_cxl._store.reading.restoring import Reader
from jax_cxl._store.trees import leaves

_LEAST_BYTES = layout.BLOCK_BYTES  # The host reads and checks smaller parts as fast.
# How many bytes of parts are copied at a time, unless one part has more. The GPU holds the pieces
# of two groups of this size, in addition to the arrays that are made of the pieces.
_GROUP_BYTES = 1 << 30


@dataclasses.dataclass
class Copy:
    """A part of an array that a GPU copies.

    Attributes:
      plan: how the GPU puts the part together; None if its only piece is the part.
      made: the part, after `run`.
    """

    reader: Reader
    pieces: list[pieces.Piece]
    plan: arranging.Plan | None
    places: list[tuple[int, int]]
    dtype: np.dtype
    sharding: jax.sharding.Sharding
    made: jax.Array = dataclasses.field(init=False)

    @functools.cached_property
    def ordinal(self) -> int:
        """Ordinal of the GPU in this process."""
        (gpu,) = self.sharding.device_set
        return platforms.CUDA.ordinal(gpu)

    @property
    def nbytes(self) -> int:
        """Bytes of all pieces."""
        return sum(math.prod(piece.shape) for piece in self.pieces) * self.dtype.itemsize

    def sources(self) -> list[jax.Array]:
        """Returns the pieces in `pinned_host` memory: views of the store's memory, not copies."""
        # Use `pinned_host` memory of the same GPU, because JAX copies more slowly from another
        # GPU's.
        devices = self.reader.stripes[0].section.devices
        _ = devices.copies  # This registers the memory.
        return [
            jax.dlpack.from_dlpack(
                dlpack.array(
                    devices.core, each.at, each.shape, self.dtype, self.ordinal, self.reader
                )
            )
            for each in self.pieces
        ]


def find(
    reader: Reader, leaf: leaves.Leaf, index: leaves.Index, sharding: jax.sharding.Sharding
) -> Copy | None:
    """Returns a part of an array for a GPU to copy, or None if the host has to read the part.

    From each shard that has bytes of the part, a GPU copies the rows with these bytes. A GPU cannot
    mend blocks by parity, so the host reads memory that has parity. A GPU also takes lines from the
    caches of this host, so the host reads memory if caches are not coherent.
    """
    dtype = leaves.dtype_of(leaf.dtype)
    shape = tuple(end - start for start, end in index)
    if not is_gpu(sharding) or not _can_copy(reader, leaf, shape, dtype):
        return None
    found: list[pieces.Piece] = []
    places: list[tuple[int, int]] = []
    blocks = []
    for number, shard, common in overlaps(leaf, index):
        inside = relative(common, shard.index)
        first, last = inside[0]
        row = dtype.itemsize * math.prod(shard.shape[1:])
        runs = []
        for part in reader.parts_of_shard(leaf, number):
            start, end = max(first * row, part.start), min(last * row, part.end)
            if start < end:
                base = part.offset - part.start
                some, place = pieces.find(reader, part.writer, base + start, base + end, dtype)
                count = (end - start) // dtype.itemsize
                exact = sum(math.prod(piece.shape) for piece in some) == count
                runs.append(arranging.Run(len(some), count, exact))
                found += some
                places.append(place)
        blocks.append(
            arranging.Block(
                runs=tuple(runs),
                shape=(last - first, *shard.shape[1:]),
                here=((0, last - first), *inside[1:]),
                there=relative(common, index),
            )
        )
    plan = arranging.Plan(shape, tuple(blocks))
    if plan.is_one_piece:
        found[0] = dataclasses.replace(found[0], shape=shape)
        return Copy(reader, found, None, [], dtype, sharding)
    return Copy(reader, found, plan, places, dtype, sharding)


def _can_copy(reader: Reader, leaf: leaves.Leaf, shape: tuple[int, ...], dtype: np.dtype) -> bool:
    section = reader.stripes[0].section
    geometry = section.geometry
    if geometry.parity or leaf.local or not section.devices.coherent:
        return False
    if dlpack.code_of(dtype) is None:
        return False
    if math.prod(shape) * dtype.itemsize < _LEAST_BYTES * geometry.num_devices:
        return False
    return max(shape) <= np.iinfo(np.int32).max  # JAX counts in 32 bits.


def run(copies: Sequence[Copy]) -> None:
    """Copies all parts, checks the copies, and sets `made` of each.

    A block that is only partly in a piece is checked in the memory, after the copy. So a change of
    such a block before the copy raises an error, too.
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
        if some and sum(each.nbytes for each in some) + copy.nbytes > _GROUP_BYTES:
            yield some
            some = []
        some.append(copy)
    if some:
        yield some


def _finish(copies: list[Copy], made: list[list[jax.Array]]) -> None:
    for copy, arrays in zip(copies, made, strict=True):
        copy.made = arrays[0]
        if copy.plan is not None:
            copy.made = arranging.arrange(copy.plan, copy.places, arrays)
    check(copies[0].reader, copies, made)


def check(reader: Reader, copies: Sequence[Copy], made: Sequence[Sequence[jax.Array]]) -> None:
    """Waits for pieces, `made` of each copy and not donated, and compares all their checksums."""
    edges: dict[int, set[int]] = {}
    by_gpu: dict[int, tuple[list[pieces.Piece], list[np.ndarray]]] = {}
    for copy, arrays in zip(copies, made, strict=True):
        for piece, array in zip(copy.pieces, arrays, strict=True):
            start = array.block_until_ready().unsafe_buffer_pointer()
            of_gpu, addresses = by_gpu.setdefault(copy.ordinal, ([], []))
            of_gpu.append(piece)
            addresses.append(start + piece.whole[:, 1])
            edges.setdefault(piece.writer, set()).update(piece.edges)
    copier = reader.stripes[0].section.devices.copies
    wanted = [(gpu, np.concatenate(at).tolist()) for gpu, (_, at) in by_gpu.items()]
    checksums = copier.checksums(wanted, layout.BLOCK_BYTES)
    for (of_gpu, _), values in zip(by_gpu.values(), checksums, strict=True):
        found = np.array(values, np.uint64)
        for piece in of_gpu:
            blocks = piece.whole[:, 0]
            reader.compare(piece.writer, blocks, found[: len(blocks)])
            found = found[len(blocks) :]
    for writer, some in edges.items():
        reader.check_blocks(writer, sorted(some))


@functools.lru_cache(1024)
def is_gpu(sharding: jax.sharding.Sharding) -> bool:
    """Whether a sharding of one device means the default memory of a GPU."""
    device: Any
    (device,) = sharding.device_set
    if sharding.memory_kind not in (None, device.default_memory().kind):
        return False
    try:
        return platforms.of(device) is platforms.CUDA
    except errors.CxlError:
        return False
