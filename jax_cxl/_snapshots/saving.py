"""Writes this process's part of a snapshot, while the program runs."""

import dataclasses
import functools
import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jax_cxl._snapshots import checksum, device_copies, flatten, layout, leaves, place, stripes
from jax_cxl._snapshots.memory import Memory
from jax_cxl._snapshots.shard_bytes import DeviceBytes, HostBytes, hold


@dataclasses.dataclass(frozen=True)
class Save:
    """One save: the part of a snapshot that this process writes.

    Attributes:
      memory: the memory of the snapshots.
      number: number of the save.
      token: token of the job.
      step: the step that the user gave.
      writers: indices of the processes that save.
      writer: position of this process among them.
      placement: where each byte of the tree goes.
      leaves: leaves of the tree.
      bytes_of: the bytes of each part that this process writes, in their order.
    """

    memory: Memory
    number: int
    token: int
    step: int
    writers: Sequence[int]
    writer: int
    placement: place.Placement
    leaves: Sequence[leaves.Leaf]
    bytes_of: Sequence[tuple[place.Part, HostBytes | DeviceBytes]]

    def run(self) -> None:
        """Writes this process's part of the snapshot, and then its record."""
        self._announce(None)
        directory = leaves.encode(self.leaves, self.writers) if self.writer == 0 else b""
        data_blocks = self.placement.data_blocks(self.writer)
        own = stripes.Stripes(
            self.memory,
            self.number,
            self.writer,
            self.placement.first_row(self.writer),
            data_blocks + layout.table_blocks(data_blocks) + layout.blocks(len(directory)),
        )
        table = np.zeros(data_blocks, np.uint64)
        output = _Output(own)
        if any(isinstance(held, DeviceBytes) for _, held in self.bytes_of):
            device_copies.write_data(own, self.bytes_of, table)
            output.skip(data_blocks)
        else:
            self._write_data(output, table)
        output.append(table)
        output.append(np.frombuffer(directory, np.uint8))
        output.finish()
        self.memory.check_paths()
        self._announce(
            layout.Record(
                number=self.number,
                token=self.token,
                step=self.step,
                time=time.time(),
                writers=len(self.writers),
                writer=self.writer,
                first_row=own.first_row,
                data_blocks=data_blocks,
                table_checksum=checksum.of(table),
                directory_bytes=len(directory),
                directory_checksum=checksum.of(directory),
            )
        )

    def _write_data(self, output: "_Output", table: np.ndarray) -> None:
        """Writes the blocks of data, and their checksums into the table."""
        block = np.zeros(layout.BLOCK_BYTES, np.uint8)
        filled = 0  # bytes of `block`
        number = 0

        def complete() -> None:
            nonlocal filled, number
            block[filled:] = 0
            table[number] = checksum.of(block)
            output.write(block)
            number, filled = number + 1, 0

        for part, shard in self.bytes_of:
            assert isinstance(shard, HostBytes)
            # Parts begin at multiples of 64 bytes.
            gap = part.offset - (number * layout.BLOCK_BYTES + filled)
            block[filled : filled + gap] = 0
            filled += gap
            done, end = 0, part.end - part.start
            while done < end:
                if filled == layout.BLOCK_BYTES:
                    complete()
                size = min(layout.BLOCK_BYTES - filled, end - done)
                piece = shard.read(done, done + size)
                if size == layout.BLOCK_BYTES:
                    # A whole block goes directly from the array into the memory.
                    table[number] = checksum.of(piece)
                    output.write(piece)
                    number += 1
                else:
                    block[filled : filled + size] = piece
                    filled += size
                done += size
        if filled:
            complete()

    def _announce(self, record: layout.Record | None) -> None:
        """Writes the record on all devices, its first word last. None clears the first word.

        Others look at the first device, unless it is lost. It comes last: when they find the record
        and go on, this process has written all copies.
        """
        geometry = self.memory.geometry
        offset = geometry.record(self.number, self.writer)
        for device in reversed(range(geometry.num_devices)):
            if record is not None:
                self.memory.write(device, offset + 8, record.to_bytes()[8:])
            number = self.number if record is not None else 0
            self.memory.store_word(device, offset, number)


class _Output:
    """Writes blocks one after the other, and the parity of each row."""

    def __init__(self, own: stripes.Stripes):
        self._own = own
        self._next = 0
        with_parity = own.memory.geometry.parity
        self._parity = np.zeros(layout.BLOCK_BYTES, np.uint8) if with_parity else None

    def write(self, block: np.ndarray) -> None:
        self._own.write(self._next, block)
        self._count(block)

    def skip(self, count: int) -> None:
        """Skips some blocks that have been written already."""
        if self._parity is None:  # There is nothing to compute from them.
            self._next += count
            return
        for block in device_copies.views(self._own, self._next, count):
            self._count(block)

    def _count(self, block: np.ndarray) -> None:
        if self._parity is not None:
            np.bitwise_xor(self._parity, block, out=self._parity)
        self._next += 1
        if self._next % self._own.memory.geometry.blocks_per_row == 0:
            self._end_row()

    def append(self, data: np.ndarray) -> None:
        """Writes data in blocks of their own; zeros fill the last one."""
        data = data.view(np.uint8)
        for start in range(0, len(data), layout.BLOCK_BYTES):
            block = np.zeros(layout.BLOCK_BYTES, np.uint8)
            piece = data[start : start + layout.BLOCK_BYTES]
            block[: len(piece)] = piece
            self.write(block)

    def finish(self) -> None:
        if self._next % self._own.memory.geometry.blocks_per_row:
            self._end_row()

    def _end_row(self) -> None:
        if self._parity is not None:
            row = (self._next - 1) // self._own.memory.geometry.blocks_per_row
            self._own.write_parity(row, self._parity)
            self._parity[:] = 0


def own_parts(
    placement: place.Placement, sources: Sequence[flatten.Source], writer: int, copy: bool
) -> list[tuple[place.Part, HostBytes | DeviceBytes]]:
    """Returns the parts that this process writes, each with its bytes.

    Args:
      placement: where each byte goes.
      sources: the leaves.
      writer: position of this process among those that save.
      copy: as for `hold`.
    """
    own = [part for part in placement.parts if part.writer == writer]
    ranges = [(_on_device(sources[part.leaf], part), part.start, part.end) for part in own]
    return list(zip(own, hold(ranges, copy), strict=True))


def _on_device(source: flatten.Source, part: place.Part) -> Any:
    """Returns the array of the device that writes a part."""
    array = source.array
    if not isinstance(array, jax.Array):
        return array
    index = source.leaf.shards[part.shard].index
    device = _holders(array.sharding, array.shape)[index][part.holder]
    return next(s.data for s in array.addressable_shards if s.device == device)


@functools.lru_cache(1024)
def _holders(
    sharding: jax.sharding.Sharding, shape: tuple[int, ...]
) -> dict[leaves.Index, list[jax.Device]]:
    """Returns the devices that hold each shard, in the order of the holders."""
    holders: dict[leaves.Index, list[jax.Device]] = {}
    for device, slices in sharding.devices_indices_map(shape).items():
        holders.setdefault(leaves.index_of(slices, shape), []).append(device)
    return holders
