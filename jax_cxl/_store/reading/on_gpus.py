"""Reads parts of arrays into GPUs: copy engines copy from the memory, and GPUs check the copies."""

import concurrent.futures
import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jax_cxl import errors
from jax_cxl._job import platforms
from jax_cxl._store.memory import dlpack, layout
from jax_cxl._store.reading.restoring import Reader
from jax_cxl._store.trees import leaves, place

_LEAST_BYTES = layout.BLOCK_BYTES  # The host reads and checks smaller parts as fast.


@dataclasses.dataclass
class Copy:
    """A part of an array that a GPU copies.

    Attributes:
      reader: the version.
      part: the part.
      dtype: its dtype.
      shape: its shape.
      sharding: the GPU.
      made: the copy, after `run`.
    """

    reader: Reader
    part: place.Part
    dtype: np.dtype
    shape: tuple[int, ...]
    sharding: jax.sharding.Sharding
    made: jax.Array = dataclasses.field(init=False)

    def source(self) -> jax.Array:
        """Returns the part in `pinned_host` memory: it is the memory itself."""
        own = self.reader.stripes[self.part.writer]
        block, inside = divmod(self.part.offset, layout.BLOCK_BYTES)
        device, offset = own.place(block)
        devices = own.section.devices
        _ = devices.copies  # This registers the memory.
        at = device, offset + inside
        # In the memory of the same GPU, because JAX copies more slowly from that of another.
        (gpu,) = self.sharding.device_set
        ordinal = platforms.CUDA.ordinal(gpu)
        return jax.dlpack.from_dlpack(
            dlpack.array(devices.core, at, self.shape, self.dtype, ordinal, self.reader)
        )

    @property
    def whole(self) -> range:
        """The blocks all of whose bytes are in the part."""
        size = layout.BLOCK_BYTES
        end = self.part.offset + self.part.end - self.part.start
        return range(layout.blocks(self.part.offset), end // size)

    @property
    def edges(self) -> set[int]:
        """The other blocks of the part."""
        end = self.part.offset + self.part.end - self.part.start
        first = self.part.offset // layout.BLOCK_BYTES
        return set(range(first, layout.blocks(end))) - set(self.whole)


def find(
    reader: Reader, leaf: leaves.Leaf, index: leaves.Index, sharding: jax.sharding.Sharding
) -> Copy | None:
    """Returns a part of an array that a GPU can copy; None if the host has to read it.

    A GPU copies whole shards that lie in one piece. It cannot mend them by parity, and it takes
    lines from the caches of this host, so the host reads memory that nobody keeps coherent.

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
    number = next((n for n, shard in enumerate(leaf.shards) if shard.index == index), None)
    if number is None or dlpack.code_of(dtype) is None:
        return None
    parts = reader.parts_of_shard(leaf, number)
    if len(parts) != 1 or parts[0].end - parts[0].start < _LEAST_BYTES:
        return None
    return Copy(reader, parts[0], dtype, leaf.shards[number].shape, sharding)


def run(copies: Sequence[Copy]) -> None:
    """Copies all parts, checks the copies, and sets `made` of each.

    Blocks that a part shares with others are checked in the memory, after the copy. So an error is
    raised if they changed before it.

    Raises:
      StoreError: a block is damaged.
    """
    if not copies:
        return
    made = jax.device_put([copy.source() for copy in copies], [copy.sharding for copy in copies])
    reader = copies[0].reader
    edges: dict[int, set[int]] = {}
    by_gpu: dict[int, list[tuple[int, int, int]]] = {}
    for copy, array in zip(copies, made, strict=True):
        copy.made = array
        writer = copy.part.writer
        (device,) = array.devices()
        start = array.block_until_ready().unsafe_buffer_pointer() - copy.part.offset
        by_gpu.setdefault(platforms.CUDA.ordinal(device), []).extend(
            (writer, block, start + block * layout.BLOCK_BYTES) for block in copy.whole
        )
        edges.setdefault(writer, set()).update(copy.edges)
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
