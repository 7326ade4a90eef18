"""Reads arrays into the memory of GPUs: the GPUs copy from the pool, and compute most checksums."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_cxl import _compat, errors
from jax_cxl._store.memory import dlpack, layout, opening
from jax_cxl._store.reading.restoring import Reader
from jax_cxl._store.trees import leaves, place
from jax_cxl._tier.arrays import Spec

_GPU = True  # Tests on CPUs change it.


def can_read(reader: Reader, spec: Spec) -> bool:
    """Returns whether the shards of an array are on GPUs and have been written as they are."""
    leaf = reader.leaves.get(spec.name)
    if leaf is None or leaf.local or leaf.key:
        return False
    device: Any = next(iter(spec.sharding.device_set))
    if device.platform == "cpu" and _GPU:
        return False
    if (leaf.shape, leaf.dtype) != (spec.shape, np.dtype(spec.dtype).name):
        return False
    known = {shard.index for shard in leaf.shards}
    wanted = set(_indices(spec).values())
    return wanted <= known and dlpack.code_of(np.dtype(spec.dtype)) is not None


def read(reader: Reader, specs: Sequence[Spec]) -> list[jax.Array]:
    """Returns arrays for which `can_read` is true.

    Raises:
      StoreError: data are damaged.
    """
    if not specs:
        return []
    if _GPU:
        _ = reader.stripes[0].section.devices.copies  # Registers the memory with CUDA, once.
    shards = [_Shard.of(reader, spec, *where) for spec in specs for where in _indices(spec).items()]
    pieces = [piece for shard in shards for piece in shard.pieces]
    where = reader.stripes[0].section.devices.where
    # Caches of this host may have old lines. A host that reads blocks drops them.
    on_host = opening.spec_of(where).coherence == "flush"
    blocks = {
        (piece.writer, block)
        for piece in pieces
        for block in piece.blocks
        if on_host or block not in piece.whole_blocks
    }
    for writer, block in sorted(blocks):
        reader.check_blocks(writer, range(block, block + 1))
    moved = jax.device_put(
        [piece.view(reader) for piece in pieces],
        [jax.sharding.SingleDeviceSharding(piece.device) for piece in pieces],
    )
    if not on_host:
        _check_on_devices(reader, pieces, jax.block_until_ready(moved))
    left = iter(moved)
    joined = iter([shard.joined([next(left) for _ in shard.pieces]) for shard in shards])
    made = []
    for spec in specs:
        array = jax.make_array_from_single_device_arrays(
            spec.shape, spec.sharding, [next(joined) for _ in _indices(spec)], dtype=spec.dtype
        )
        made.append(_compat.array_like(array, False, spec.committed))
    return jax.block_until_ready(made)


@dataclasses.dataclass(frozen=True)
class _Piece:
    """Bytes of a shard that lie together on a device of the memory.

    Attributes:
      device: the GPU to which they go.
      writer: which process wrote them.
      start: where they begin in the writer's blocks.
      end: where they end.
      place: device of the memory, and offset.
      shape: shape of the elements.
      dtype: dtype of the elements.
    """

    device: Any
    writer: int
    start: int
    end: int
    place: tuple[int, int]
    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def blocks(self) -> range:
        """The blocks that have some of the bytes."""
        return range(self.start // layout.BLOCK_BYTES, layout.blocks(self.end))

    @property
    def whole_blocks(self) -> range:
        """The blocks of which all bytes are here."""
        return range(layout.blocks(self.start), self.end // layout.BLOCK_BYTES)

    def view(self, reader: Reader) -> Any:
        """Returns an array over the memory."""
        core = reader.stripes[0].section.devices.core
        over = dlpack.array(core, self.place, self.shape, self.dtype, _GPU, reader)
        return jax.dlpack.from_dlpack(over)


@dataclasses.dataclass(frozen=True)
class _Shard:
    """A shard, and its pieces in order."""

    spec: Spec
    device: Any
    shape: tuple[int, ...]
    pieces: Sequence[_Piece]

    @classmethod
    def of(cls, reader: Reader, spec: Spec, device: Any, index: leaves.Index) -> "_Shard":
        """Finds the pieces of a shard."""
        leaf = reader.leaves[spec.name]
        number = next(n for n, shard in enumerate(leaf.shards) if shard.index == index)
        shape, dtype = leaf.shards[number].shape, np.dtype(spec.dtype)
        pieces = [
            _Piece(device, part.writer, *piece, ((piece[1] - piece[0]) // dtype.itemsize,), dtype)
            for part in reader.parts(leaf)
            if part.shard == number
            for piece in _pieces(reader, part)
        ]
        if len(pieces) == 1:
            pieces = [dataclasses.replace(pieces[0], shape=shape)]
        return cls(spec, device, shape, pieces)

    def joined(self, moved: Sequence[Any]) -> Any:
        """Returns the shard from its pieces on the device."""
        if not moved:
            return jnp.zeros(self.shape, self.spec.dtype, device=self.device)
        return moved[0] if len(moved) == 1 else _join(list(moved), self.shape)


_join = jax.jit(lambda pieces, shape: jnp.concatenate(pieces).reshape(shape), static_argnums=1)


def _indices(spec: Spec) -> dict[Any, leaves.Index]:
    found = spec.sharding.addressable_devices_indices_map(spec.shape)
    whole = (slice(None),) * len(spec.shape)
    return {device: leaves.index_of(at or whole, spec.shape) for device, at in found.items()}


def _pieces(reader: Reader, part: place.Part) -> Iterator[tuple[int, int, tuple[int, int]]]:
    """Yields start, end and place of the pieces of a part."""
    start, end = part.offset, part.offset + part.end - part.start
    blocks = range(start // layout.BLOCK_BYTES, layout.blocks(end))
    first = blocks.start
    for device, offset, count in reader.stripes[part.writer].runs(blocks):
        begin = first * layout.BLOCK_BYTES
        first += count
        low, high = max(start, begin), min(end, first * layout.BLOCK_BYTES)
        yield low, high, (device, offset + low - begin)


def _check_on_devices(reader: Reader, pieces: Sequence[_Piece], moved: Sequence[Any]) -> None:
    """Lets the GPUs compare the checksums of whole blocks, as they have arrived.

    Raises:
      StoreError: a block is damaged.
    """
    work: dict[int, list[tuple[int, int, int]]] = {}
    for piece, array in zip(pieces, moved, strict=True):
        base = array.unsafe_buffer_pointer() - piece.start
        work.setdefault(piece.device.local_hardware_id, []).extend(
            (piece.writer, block, base + block * layout.BLOCK_BYTES) for block in piece.whole_blocks
        )
    copies = reader.stripes[0].section.devices.copies
    for ordinal, blocks in work.items():
        addresses = [address for _, _, address in blocks]
        found = copies.checksums(ordinal, addresses, layout.BLOCK_BYTES) if addresses else []
        for (writer, block, _), checksum in zip(blocks, found, strict=True):
            if checksum != int(reader.table(writer)[block]):
                reader.check_blocks(writer, range(block, block + 1))
                raise errors.StoreError(f"a copy of block {block} of process {writer} is damaged")
