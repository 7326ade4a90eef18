"""The blocks of one process in an area, spread over the devices of the memory.

A row has one block on each device. With parity, one block of each row is the XOR of the others, so
that any block can be computed from the rest. The parity moves to another device from row to row.
"""

import dataclasses
from collections.abc import Iterator
from typing import Self

import numpy as np

from jax_cxl import errors
from jax_cxl._store.memory import checksum, layout
from jax_cxl._store.memory.section import Section


@dataclasses.dataclass(frozen=True)
class Stripes:
    """The blocks of a process, numbered from 0, from the row `first_row` of the area on."""

    section: Section
    number: int
    writer: int
    first_row: int
    num_blocks: int

    @classmethod
    def of(cls, section: Section, record: layout.Record) -> Self:
        """Returns the blocks that a record describes."""
        count = record.data_blocks + record.table_blocks + layout.blocks(record.directory_bytes)
        return cls(section, record.number, record.writer, record.first_row, count)

    @property
    def num_rows(self) -> int:
        return -(-self.num_blocks // self.section.geometry.blocks_per_row)

    def parity_device(self, row: int) -> int:
        """Returns the device of a row's parity."""
        return (self.writer + row) % self.section.geometry.num_devices

    def place(self, block: int) -> tuple[int, int]:
        """Returns device and offset of a block."""
        geometry = self.section.geometry
        row, column = divmod(block, geometry.blocks_per_row)
        device = (self.parity_device(row) + geometry.parity + column) % geometry.num_devices
        return device, self.offset(row)

    def runs(self, blocks: range) -> Iterator[tuple[int, int, int]]:
        """Yields runs of blocks that are adjacent in memory: device, offset, number of blocks."""
        if self.section.geometry.num_devices == 1:
            yield *self.place(blocks[0]), len(blocks)
            return
        for block in blocks:
            yield *self.place(block), 1

    def offset(self, row: int) -> int:
        """Returns where the blocks of a row begin, on each device."""
        return self.section.geometry.row(self.number, self.first_row + row)

    def write(self, block: int, data: np.ndarray) -> None:
        """Writes a whole block."""
        self.section.write(*self.place(block), data)

    def read(self, block: int, size: int = layout.BLOCK_BYTES) -> np.ndarray:
        """Returns a private copy of the first bytes of a block, unchecked."""
        return self.section.devices.read(*self.place(block), size)

    def rebuild(self, block: int, known: dict[int, np.ndarray] | None = None) -> np.ndarray:
        """Returns a block, computed from the others of its row, which are read unless known."""
        per_row = self.section.geometry.blocks_per_row
        row = block // per_row
        offset = self.offset(row)
        out = self.section.devices.read(self.parity_device(row), offset, layout.BLOCK_BYTES)
        for other in range(row * per_row, min((row + 1) * per_row, self.num_blocks)):
            if other != block:
                content = (known or {}).get(other)
                np.bitwise_xor(out, self.read(other) if content is None else content, out=out)
        return out

    def read_all_checked(self, blocks: range, expected: np.ndarray, out: np.ndarray) -> None:
        """Copies consecutive blocks into `out`, and checks them. Repairs the copies from parity."""
        size = layout.BLOCK_BYTES
        start = 0
        for device, offset, count in self.runs(blocks):
            self.section.devices.read_into(device, offset, out[start : start + count * size])
            start += count * size
        for number, block in enumerate(blocks):
            found = out[number * size : (number + 1) * size]
            if self.section.geometry.parity and checksum.of(found) != expected[number]:
                found[:] = self.rebuild(block)
            self.check(block, expected[number], found)

    def check(self, block: int, expected: int, found: np.ndarray) -> None:
        """Checks a private copy of a block."""
        if checksum.of(found) != expected:
            raise self.damaged(block)

    def damaged(self, block: int) -> errors.StoreError:
        """Returns the error for a block whose checksum differs."""
        device, offset = self.place(block)
        return errors.StoreError(
            f"block {block} of process {self.writer} is damaged (device {device}, offset {offset}):"
            " restore an older version of the data"
        )

    def read_table(self, record: layout.Record) -> np.ndarray:
        """Returns the checksums of the blocks of data."""
        first, expected = record.data_blocks, record.table_checksum
        return self.read_range(first, 8 * first, expected, "table of checksums").view(np.uint64)

    def read_range(self, first: int, size: int, expected: int, what: str) -> np.ndarray:
        """Returns `size` bytes from the start of block `first`, if their checksum is `expected`."""
        last, rest = divmod(size, layout.BLOCK_BYTES)
        sizes = [layout.BLOCK_BYTES] * last + [rest] * (rest > 0)
        lost: list[int | None] = [None]
        if self.section.geometry.parity:
            lost += range(self.section.geometry.num_devices)
        for device in lost:
            parts = [
                self.rebuild(block) if self.place(block)[0] == device else self.read(block, part)
                for block, part in enumerate(sizes, first)
            ]
            data = np.concatenate(parts)[:size] if parts else np.empty(0, np.uint8)
            if checksum.of(data) == expected:
                return data
        raise errors.StoreError(
            f"the {what} of process {self.writer} is damaged: restore an older version of the data"
        )
