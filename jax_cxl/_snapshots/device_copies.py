"""Writes blocks of arrays in the memory of GPUs: the GPUs copy, the host computes checksums."""

import concurrent.futures
import functools
import itertools
import os
from collections.abc import Iterable, Sequence

import numpy as np

from jax_cxl._snapshots import checksum, layout, place, stripes
from jax_cxl._snapshots.shard_bytes import DeviceBytes, HostBytes

_CHUNK_BYTES = 16 << 20  # What a copy moves: long enough for full speed.


def write_data(
    own: stripes.Stripes,
    parts: Sequence[tuple[place.Part, HostBytes | DeviceBytes]],
    table: np.ndarray,
) -> None:
    """Writes blocks of data and of their parity, and their checksums into a table.

    Args:
      own: blocks of this process.
      parts: what it writes, in order.
      table: a checksum for each block of data.
    """
    copies = own.memory.device_copies
    # Block -> the copies after which its data are there.
    awaited: dict[int, list[int]] = {}
    written = 0
    for part, held in parts:
        _write_zeros(own, written, part.offset)
        source = held.address() if isinstance(held, DeviceBytes) else 0
        for start, end in _extents(own, part.offset, part.offset + part.end - part.start):
            first = start - part.offset
            device, offset = _at(own, start)
            if isinstance(held, HostBytes):
                own.memory.core.write(device, offset, held.read(first, first + end - start))
                continue
            target = own.memory.core.address(device, offset)
            copy = copies.start(held.ordinal, source + first, target, end - start)
            for block in range(start // layout.BLOCK_BYTES, layout.blocks(end)):
                awaited.setdefault(block, []).append(copy)
        written = part.offset + part.end - part.start
    _write_zeros(own, written, len(table) * layout.BLOCK_BYTES)
    rows = own.memory.geometry.blocks_per_row
    chunk = max(rows, _CHUNK_BYTES // layout.BLOCK_BYTES // rows * rows)

    def finish(first: int) -> None:
        """Publishes some whole rows of blocks, and computes their checksums."""
        blocks = range(first, min(first + chunk, len(table)))
        for copy in dict.fromkeys(itertools.chain(*(awaited.get(b, ()) for b in blocks))):
            copies.wait(copy)
        for device, offset, count in own.runs(blocks):
            size = count * layout.BLOCK_BYTES
            own.memory.core.publish_device_writes(device, offset, size)
        for block in blocks:
            table[block] = checksum.of(_view(own, block))

    for _ in _threads().map(finish, range(0, len(table), chunk)):
        pass  # Raises what a thread has raised.


def views(own: stripes.Stripes, count: int) -> Iterable[np.ndarray]:
    """Yields the first blocks as they lie in the memory."""
    return (_view(own, block) for block in range(count))


def _extents(own: stripes.Stripes, start: int, end: int) -> Iterable[tuple[int, int]]:
    """Cuts a range of the process's bytes into pieces that lie together on a device."""
    together = _CHUNK_BYTES if own.memory.geometry.num_devices == 1 else layout.BLOCK_BYTES
    while start < end:
        after = min(end, (start // together + 1) * together)
        yield start, after
        start = after


def _at(own: stripes.Stripes, position: int) -> tuple[int, int]:
    block, inside = divmod(position, layout.BLOCK_BYTES)
    device, offset = own.place(block)
    return device, offset + inside


def _write_zeros(own: stripes.Stripes, start: int, end: int) -> None:
    for first, after in _extents(own, start, end):
        own.memory.core.write(*_at(own, first), np.zeros(after - first, np.uint8))


def _view(own: stripes.Stripes, block: int) -> np.ndarray:
    """Returns a view of a block as it lies in the memory.

    It runs for each block, so it is short: threads wait for the interpreter's lock meanwhile.
    """
    core = own.memory.core
    start = core.address(*own.place(block)) - core.base
    return own.memory.mapped[start : start + layout.BLOCK_BYTES]


@functools.cache
def _threads() -> concurrent.futures.ThreadPoolExecutor:
    count = max(1, min(4, (os.cpu_count() or 1) // 2))
    return concurrent.futures.ThreadPoolExecutor(count, "jax_cxl snapshots")
