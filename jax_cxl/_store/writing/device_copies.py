"""Writes blocks of arrays in the memory of GPUs: the GPUs copy, and compute most checksums."""

import concurrent.futures
import dataclasses
import functools
import itertools
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from jax_cxl._store.memory import checksum, layout, stripes
from jax_cxl._store.trees import place
from jax_cxl._store.writing.shard_bytes import DeviceBytes, HostBytes

# Bytes of one copy. It is long enough for full speed. It is short, because copies of the program,
# for example of a loss, wait until it ends.
_CHUNK_BYTES = 16 << 20
# Each GPU has several copies under way, so that its copy engine never waits for Python.
_CHUNKS_UNDER_WAY = 4

Part = tuple[place.Part, HostBytes | DeviceBytes]


def write_data(own: stripes.Stripes, batches: Iterable[Any], table: np.ndarray) -> None:
    """Writes blocks of data, and their checksums into a table.

    Args:
      own: blocks of this process.
      batches: the parts that it writes, in order (`saving.Batch`).
      table: array for the checksum of each block of data.
    """
    devices = own.section.devices
    finished: list[concurrent.futures.Future[None]] = []
    on_host = np.ones(len(table), bool)

    def of_batches() -> Iterator[Sequence[Part]]:
        for batch in batches:
            for ordinal, runs in _in_one_array(batch.parts).items():
                work = functools.partial(_checksums_on_device, devices.copies, ordinal, runs, table)
                finished.append(_threads().submit(work))
                for run in runs:
                    on_host[run.first : run.first + run.count] = False
            yield batch.parts

    rows = own.section.geometry.blocks_per_row
    chunk = max(rows, _CHUNK_BYTES // layout.BLOCK_BYTES // rows * rows)
    room = threading.Semaphore(_CHUNKS_UNDER_WAY * jax.local_device_count())
    pieces = _pieces(own, of_batches(), chunk * layout.BLOCK_BYTES, len(table) * layout.BLOCK_BYTES)
    for of_chunk in _chunks(pieces, chunk):
        first = of_chunk[0].start // layout.BLOCK_BYTES
        blocks = range(first, min(first + chunk, len(table)))
        room.acquire()
        copies = [(copy, piece.held) for piece in of_chunk for copy in piece.begin(own)]
        finished.append(_threads().submit(_finish, own, table, on_host, blocks, copies, room))
    for future in finished:
        future.result()


@dataclasses.dataclass(frozen=True)
class _Run:
    """Blocks that follow each other in the memory of a GPU, all in one array.

    Attributes:
      first: the first block.
      count: how many blocks.
      held: the array.
      start: the position of the first block in `held`.
    """

    first: int
    count: int
    held: DeviceBytes
    start: int


def _in_one_array(parts: Sequence[Part]) -> dict[int, list[_Run]]:
    """Returns, by the ordinal of the GPU, the blocks whose checksums a GPU can compute."""
    found: dict[int, list[_Run]] = {}
    for part, held in parts:
        first = layout.blocks(part.offset)
        count = (part.offset + part.end - part.start) // layout.BLOCK_BYTES - first
        start = first * layout.BLOCK_BYTES - part.offset
        if count > 0 and isinstance(held, DeviceBytes):
            found.setdefault(held.ordinal, []).append(_Run(first, count, held, start))
    return found


def _checksums_on_device(
    copier: Any, ordinal: int, runs: Sequence[_Run], table: np.ndarray
) -> None:
    """Lets a GPU compute the checksums of blocks of its arrays, and writes them into the table.

    A restore compares them with what the copies wrote. So it also finds errors of the copies.
    """
    addresses: list[int] = []
    for run in runs:
        first = run.held.address() + run.start
        addresses += range(first, first + run.count * layout.BLOCK_BYTES, layout.BLOCK_BYTES)
    checksums = copier.checksums(ordinal, addresses, layout.BLOCK_BYTES)
    done = 0
    for run in runs:
        table[run.first : run.first + run.count] = checksums[done : done + run.count]
        done += run.count


@dataclasses.dataclass(frozen=True)
class _Piece:
    """Bytes that lie together on a device of the memory.

    Attributes:
      start: their position among the bytes of this process.
      end: the position after them.
      held: the array that they come from; None if they are zeros.
      first: the position of their first byte in `held`.
    """

    start: int
    end: int
    held: HostBytes | DeviceBytes | None = None
    first: int = 0

    def begin(self, own: stripes.Stripes) -> list[int]:
        """Writes the bytes, or starts a copy and returns its number."""
        block, inside = divmod(self.start, layout.BLOCK_BYTES)
        device, offset = own.place(block)
        size = self.end - self.start
        if isinstance(self.held, DeviceBytes):
            own.section.check_fence(device)
            target = own.section.devices.core.address(device, offset + inside)
            source = self.held.address() + self.first
            return [own.section.devices.copies.start(self.held.ordinal, source, target, size)]
        data = (
            np.zeros(size, np.uint8)
            if self.held is None
            else self.held.read(self.first, self.first + size)
        )
        own.section.write(device, offset + inside, data)
        return []


def _pieces(
    own: stripes.Stripes, of_batches: Iterable[Sequence[Part]], chunk_bytes: int, total: int
) -> Iterator[list[_Piece]]:
    """Yields all bytes of this process in pieces, in order: those of each batch together."""
    together = chunk_bytes if own.section.geometry.num_devices == 1 else layout.BLOCK_BYTES
    written = 0
    for parts in of_batches:
        pieces: list[_Piece] = []
        for part, held in parts:
            pieces += (_Piece(*cut) for cut in _cut(written, part.offset, together))
            written = part.offset + part.end - part.start
            for start, end in _cut(part.offset, written, together):
                pieces.append(_Piece(start, end, held, start - part.offset))
        yield pieces
    yield [_Piece(*cut) for cut in _cut(written, total, together)]


def _chunks(of_batches: Iterable[list[_Piece]], chunk: int) -> Iterator[list[_Piece]]:
    """Yields the pieces of each chunk.

    The chunks of a batch come from all GPUs in turn, so that all copy at once, although the
    shards of an array lie one after the other.

    Args:
      of_batches: the pieces, in order.
      chunk: how many blocks a chunk has.
    """
    last: list[_Piece] = []
    for pieces in of_batches:
        whole = [
            list(group)
            for _, group in itertools.groupby(
                last + pieces, lambda piece: piece.start // layout.BLOCK_BYTES // chunk
            )
        ]
        # The next batch may have more of it.
        last = whole.pop() if whole else []
        by_gpu: dict[int | None, list[list[_Piece]]] = {}
        for each in whole:
            by_gpu.setdefault(_gpu_of(each), []).append(each)
        for in_turn in itertools.zip_longest(*by_gpu.values()):
            yield from filter(None, in_turn)
    if last:
        yield last


def _gpu_of(pieces: Sequence[_Piece]) -> int | None:
    held = (piece.held for piece in pieces)
    return next((each.ordinal for each in held if isinstance(each, DeviceBytes)), None)


def _cut(start: int, end: int, unit: int) -> Iterator[tuple[int, int]]:
    """Cuts a range at the multiples of a unit."""
    while start < end:
        after = min(end, (start // unit + 1) * unit)
        yield start, after
        start = after


def _finish(
    own: stripes.Stripes,
    table: np.ndarray,
    on_host: np.ndarray,
    blocks: range,
    copies: Sequence[tuple[int, Any]],
    room: threading.Semaphore,
) -> None:
    """Waits for the copies of some whole rows of blocks, and publishes the blocks.

    `copies` has their numbers, each with what it copies, which lives until then.

    Then it computes the checksums of the blocks of which `on_host` is true.
    """
    try:
        for copy, _ in copies:
            own.section.devices.copies.wait(copy)
    finally:
        room.release()
    for device, offset, count in own.runs(blocks):
        own.section.devices.publish_device_writes(device, offset, count * layout.BLOCK_BYTES)
    for block in blocks:
        if on_host[block]:
            table[block] = checksum.of(_view(own, block))


def views(own: stripes.Stripes, first: int, count: int) -> Iterator[np.ndarray]:
    """Yields some blocks that follow each other, as they lie in the memory."""
    return (_view(own, block) for block in range(first, first + count))


def _view(own: stripes.Stripes, block: int) -> np.ndarray:
    core = own.section.devices.core
    start = core.address(*own.place(block)) - core.base
    return own.section.devices.mapped[start : start + layout.BLOCK_BYTES]


@functools.cache
def _threads() -> concurrent.futures.ThreadPoolExecutor:
    # These threads wait for copies. In memory that nobody keeps coherent each thread also writes
    # lines back, a few GB/s.
    count = max(2, min(12, (os.cpu_count() or 1) * 3 // 4))
    return concurrent.futures.ThreadPoolExecutor(count, "jax_cxl store")
