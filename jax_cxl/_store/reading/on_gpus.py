"""Reads parts of arrays into GPUs: copy engines copy from the memory, and GPUs check the copies."""

import dataclasses
import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jax_cxl import errors
from jax_cxl._job import platforms
from jax_cxl._store.memory import dlpack, layout
from jax_cxl._store.reading import checking, geometry
from jax_cxl._store.reading.restoring import Reader
from jax_cxl._store.trees import leaves

_ALIGN = 64  # In `pinned_host`, JAX takes arrays that begin at multiples of this.
_LEAST_BYTES = layout.BLOCK_BYTES  # The host reads and checks smaller parts as fast.
# How many bytes of parts are copied at a time, unless one part has more. The GPU holds the pieces
# of two groups of this size, in addition to the arrays that are made of the pieces.
_GROUP_BYTES = 1 << 30


class Piece(NamedTuple):
    """Bytes of a writer from `start` to `end`, whose first `skip` elements are not wanted."""

    writer: int
    start: int
    end: int
    skip: int


# Rows of saved shards, each with how many elements come from each of its pieces.
Plan = tuple[tuple[geometry.Rows, tuple[int, ...]], ...]


@dataclasses.dataclass
class Copy:
    """A part of an array that a GPU copies.

    Attributes:
      plan: how the GPU puts the part together; None if its only piece is the part.
      made: the part, after `run`.
    """

    reader: Reader
    shape: tuple[int, ...]
    pieces: list[Piece]
    plan: Plan | None
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
        return sum(piece.end - piece.start for piece in self.pieces)

    def sources(self) -> list[jax.Array]:
        """Returns the pieces in `pinned_host` memory: views of the store's memory, not copies."""
        # Use `pinned_host` memory of the same GPU, because JAX copies more slowly from another
        # GPU's.
        devices = self.reader.stripes[0].section.devices
        _ = devices.copies  # This registers the memory.
        found = []
        for piece in self.pieces:
            block, inside = divmod(piece.start, layout.BLOCK_BYTES)
            device, offset = self.reader.stripes[piece.writer].place(block)
            count = (piece.end - piece.start) // self.dtype.itemsize
            array = dlpack.Array(
                devices.core,
                (device, offset + inside),
                (count,) if self.plan else self.shape,
                self.dtype,
                self.ordinal,
                self.reader,
            )
            found.append(jax.dlpack.from_dlpack(array))
        return found


def find(
    reader: Reader, leaf: leaves.Leaf, index: leaves.Index, sharding: jax.sharding.Sharding
) -> Copy | None:
    """Returns a part of an array for a GPU to copy, or None if the host has to read the part.

    From each shard that has bytes of the part, a GPU copies the rows with these bytes. It copies
    from memory of one device, in which the rows are contiguous. A GPU takes lines from the caches
    of this host, so the host reads memory if caches are not coherent.
    """
    dtype = leaves.dtype_of(leaf.dtype)
    shape = geometry.shape_of(index)
    if not is_gpu(sharding) or not _can_copy(reader, leaf, shape, dtype):
        return None
    found: list[Piece] = []
    plan = []
    for rows in geometry.rows(leaf, index):
        counts = []
        for part in reader.parts_of_rows(leaf, rows):
            size = part.end - part.start
            before = part.offset % _ALIGN
            start, end = part.offset - before, part.offset + size
            found.append(Piece(part.writer, start, end, before // dtype.itemsize))
            counts.append(size // dtype.itemsize)
        # Plans are alike if they differ only in where the shards are.
        plan.append((rows._replace(shard=0, start=0), tuple(counts)))
    is_whole = len(found) == 1 and not found[0].skip and plan[0][0].shape == shape
    return Copy(reader, shape, found, None if is_whole else tuple(plan), dtype, sharding)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _arrange(
    shape: tuple[int, ...], plan: Plan, skips: Sequence[int], pieces: Sequence[jax.Array]
) -> jax.Array:
    """Returns a part of an array, put together from pieces.

    `skips` has for each piece how many elements come before those of the plan. The skips are not
    part of the plan, a static argument, so that arrays of the same shapes share a compiled program.
    """
    left = iter(zip(skips, pieces, strict=True))
    out = jnp.empty(shape, pieces[0].dtype)
    for rows, counts in plan:
        runs = [
            jax.lax.dynamic_slice(piece, [skip], [count])
            for count, (skip, piece) in zip(counts, left, strict=False)
        ]
        flat = jnp.concatenate(runs)
        common = flat.reshape(rows.shape)[geometry.slices(rows.here)]
        if common.shape == shape:
            return common
        out = jax.lax.dynamic_update_slice(out, common, [start for start, _ in rows.there])
    return out


def _can_copy(reader: Reader, leaf: leaves.Leaf, shape: tuple[int, ...], dtype: np.dtype) -> bool:
    section = reader.stripes[0].section
    if section.geometry.num_devices > 1 or leaf.local or not section.devices.coherent:
        return False
    if dlpack.code_of(dtype) is None or math.prod(shape) * dtype.itemsize < _LEAST_BYTES:
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
            skips = [piece.skip for piece in copy.pieces]
            copy.made = _arrange(copy.shape, copy.plan, skips, arrays)
    check(copies[0].reader, copies, made)


def check(reader: Reader, copies: Sequence[Copy], made: Sequence[Sequence[jax.Array]]) -> None:
    """Waits for pieces, `made` of each copy and not donated, and compares all their checksums."""
    copied = checking.Copied(reader, reader.stripes[0].section.devices.copies)
    for copy, arrays in zip(copies, made, strict=True):
        for piece, array in zip(copy.pieces, arrays, strict=True):
            address = array.block_until_ready().unsafe_buffer_pointer()
            copied.add(copy.ordinal, piece.writer, piece.start, piece.end, address)
    copied.compare(slice(None))
    for _ in copied.check_on_host():
        pass  # Raises the error of a thread.


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
