"""Writes blocks of arrays that are in GPUs' memory. GPUs copy them, and compute most checksums."""

import concurrent.futures
import dataclasses
import functools
import itertools
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from jax_cxl._store.memory import checksum, layout, stripes
from jax_cxl._store.trees import place
from jax_cxl._store.writing.shard_bytes import DeviceBytes, HostBytes

# Bytes that are copied and checked together. Python spends about 0.5 ms on a chunk.
_CHUNK_BYTES = 256 << 20
# Blocks that a thread publishes at a time if the host has to write back cache lines or to compute
# checksums.
_HOST_BLOCKS = 16
# Each GPU has several chunks under way, so that its copy engine never waits for Python.
_CHUNKS_UNDER_WAY = 2

Part = tuple[place.Part, HostBytes | DeviceBytes]


def write_data(own: stripes.Stripes, batches: Iterable[Any], table: np.ndarray) -> None:
    """Writes this process's batches of blocks, and their checksums into a table."""
    import jax

    rows = own.section.geometry.blocks_per_row
    chunk = max(rows, _CHUNK_BYTES // layout.BLOCK_BYTES // rows * rows) * layout.BLOCK_BYTES
    parts = (batch.parts for batch in batches)
    room = threading.Semaphore(_CHUNKS_UNDER_WAY * jax.local_device_count())
    finished: list[concurrent.futures.Future[None]] = []
    for pieces in _chunks(_pieces(own, parts, chunk, len(table) * layout.BLOCK_BYTES), chunk):
        room.acquire()
        copies = _begin(own, pieces)
        finished.append(
            _threads().submit(_finish, own, table, pieces, copies, room, finished.append)
        )
    for future in finished:  # A future may add others to the list before it is done.
        future.result()


def _begin(own: stripes.Stripes, pieces: Sequence["_Piece"]) -> list[int]:
    """Writes pieces that are in the host's memory, and starts copies of those on GPUs.

    Returns the numbers of the copies.
    """
    by_gpu: dict[int, list[tuple[int, int, int]]] = {}
    for piece in pieces:
        if isinstance(piece.held, DeviceBytes):
            by_gpu.setdefault(piece.held.ordinal, []).append(piece.copy(own))
        else:
            piece.write(own)
    if not by_gpu:
        return []
    for device in range(own.section.geometry.num_devices):
        own.section.check_fence(device)
    return [own.section.devices.copies.start(ordinal, some) for ordinal, some in by_gpu.items()]


@dataclasses.dataclass(frozen=True)
class _Piece:
    """Bytes that are contiguous on one device of the memory: those of `held` from `first` on.

    They are zeros if `held` is None. `start` and `end` count the bytes of this process.
    """

    start: int
    end: int
    held: HostBytes | DeviceBytes | None = None
    first: int = 0

    def address(self) -> int:
        """Waits until the array has been computed; returns the address of the bytes on a GPU."""
        assert isinstance(self.held, DeviceBytes)
        return self.held.address() + self.first

    def copy(self, own: stripes.Stripes) -> tuple[int, int, int]:
        """Returns what a GPU copies: source address, target address, and number of bytes."""
        block, inside = divmod(self.start, layout.BLOCK_BYTES)
        device, offset = own.place(block)
        target = own.section.devices.core.address(device, offset + inside)
        return self.address(), target, self.end - self.start

    def write(self, own: stripes.Stripes) -> None:
        assert not isinstance(self.held, DeviceBytes)
        block, inside = divmod(self.start, layout.BLOCK_BYTES)
        device, offset = own.place(block)
        size = self.end - self.start
        data = (
            np.zeros(size, np.uint8)
            if self.held is None
            else self.held.read(self.first, self.first + size)
        )
        own.section.write(device, offset + inside, data)


def _pieces(
    own: stripes.Stripes, of_batches: Iterable[Sequence[Part]], chunk_bytes: int, total: int
) -> Iterator[list[_Piece]]:
    """Yields a list of pieces for each batch.

    Together, the lists contain all bytes of this process, in order. If a batch ends within a row,
    the pieces of this row come with the next batch.
    """
    geometry = own.section.geometry
    together = chunk_bytes if geometry.num_devices == 1 else layout.BLOCK_BYTES
    row = geometry.blocks_per_row * layout.BLOCK_BYTES
    written = 0
    rest: list[_Piece] = []
    for parts in of_batches:
        pieces, rest = rest, []
        end_of_batch = max((part.offset + part.end - part.start for part, _ in parts), default=0)
        whole = end_of_batch // row * row
        for part, held in parts:
            pieces += (_Piece(*cut) for cut in _cut(written, part.offset, together, whole))
            written = part.offset + part.end - part.start
            for start, end in _cut(part.offset, written, together, whole):
                pieces.append(_Piece(start, end, held, start - part.offset))
        while pieces and pieces[-1].end > whole:
            rest.insert(0, pieces.pop())
        yield pieces
    yield rest + [_Piece(*cut) for cut in _cut(written, total, together, total)]


def _chunks(of_batches: Iterable[list[_Piece]], chunk_bytes: int) -> Iterator[list[_Piece]]:
    """Yields the pieces of each chunk. A chunk consists of whole rows.

    The shards of an array follow each other in the bytes of this process. So in the order of the
    bytes, only one GPU at a time would copy. Therefore this yields the chunks of a batch from all
    GPUs in turn, and all GPUs copy at once.
    """
    for pieces in of_batches:
        by_gpu: dict[int | None, list[list[_Piece]]] = {}
        for _, group in itertools.groupby(pieces, lambda piece: piece.start // chunk_bytes):
            of_chunk = list(group)
            held = (piece.held for piece in of_chunk)
            gpu = next((each.ordinal for each in held if isinstance(each, DeviceBytes)), None)
            by_gpu.setdefault(gpu, []).append(of_chunk)
        for in_turn in itertools.zip_longest(*by_gpu.values()):
            yield from filter(None, in_turn)


def _cut(start: int, end: int, unit: int, also: int) -> Iterator[tuple[int, int]]:
    """Cuts a range at the multiples of `unit`, and at the position `also`."""
    while start < end:
        after = min(end, (start // unit + 1) * unit)
        if start < also < after:
            after = also
        yield start, after
        start = after


def _finish(
    own: stripes.Stripes,
    table: np.ndarray,
    pieces: list[_Piece],
    copies: Sequence[int],
    room: threading.Semaphore,
    add: Callable[[concurrent.futures.Future[None]], None],
) -> None:
    """Waits for the copies of whole rows of blocks, computes checksums, and publishes the blocks.

    This function empties `pieces`, so that the arrays live only until they have been copied. It may
    give work to other threads, and passes the futures of this work to `add`.
    """
    blocks = range(pieces[0].start // layout.BLOCK_BYTES, layout.blocks(pieces[-1].end))
    try:
        on_host = _checksums_on_gpus(own, pieces, blocks, table)
        for copy in copies:
            own.section.devices.copies.wait(copy)
    finally:
        pieces.clear()
        room.release()
    if own.section.devices.coherent and not on_host:
        _publish(own, table, blocks, on_host)
        return
    for start in range(blocks.start, blocks.stop, _HOST_BLOCKS):
        some = range(start, min(start + _HOST_BLOCKS, blocks.stop))
        add(_threads().submit(_publish, own, table, some, on_host))


def _publish(own: stripes.Stripes, table: np.ndarray, blocks: range, on_host: set[int]) -> None:
    """Publishes blocks, and computes the checksums of those in `on_host`."""
    for device, offset, count in own.runs(blocks):
        own.section.devices.publish_device_writes(device, offset, count * layout.BLOCK_BYTES)
    for block in blocks:
        if block in on_host:
            table[block] = checksum.of(view(own, block))


def _checksums_on_gpus(
    own: stripes.Stripes, pieces: Sequence[_Piece], blocks: range, table: np.ndarray
) -> set[int]:
    """Lets GPUs compute the checksums of blocks from one array on a GPU; returns the other blocks.

    The GPUs read the arrays, not the copies. A restore checks the copies against these checksums,
    so the restore also finds errors in copying.
    """
    found: dict[int, tuple[list[int], list[int]]] = {}
    for piece in pieces:
        first, last = layout.blocks(piece.start), piece.end // layout.BLOCK_BYTES
        if first < last and isinstance(piece.held, DeviceBytes):
            numbers, addresses = found.setdefault(piece.held.ordinal, ([], []))
            start = piece.address() + first * layout.BLOCK_BYTES - piece.start
            numbers += range(first, last)
            addresses += (start + n * layout.BLOCK_BYTES for n in range(last - first))
    of_gpus = [(ordinal, addresses) for ordinal, (_, addresses) in found.items()]
    rest = set(blocks)
    if not of_gpus:
        return rest
    checksums = own.section.devices.copies.checksums(of_gpus, layout.BLOCK_BYTES)
    for (numbers, _), values in zip(found.values(), checksums, strict=True):
        table[numbers] = values
        rest.difference_update(numbers)
    return rest


def view(own: stripes.Stripes, block: int) -> np.ndarray:
    """Returns a view of a block, as it lies in the memory."""
    core = own.section.devices.core
    start = core.address(*own.place(block)) - core.base
    return own.section.devices.mapped[start : start + layout.BLOCK_BYTES]


@functools.cache
def _threads() -> concurrent.futures.ThreadPoolExecutor:
    # These threads wait for copies. In memory without coherence they also write cache lines back.
    # One thread does so at only a few GB/s, so there are several.
    count = max(2, min(12, (os.cpu_count() or 1) * 3 // 4))
    return concurrent.futures.ThreadPoolExecutor(count, "jax_cxl store")
