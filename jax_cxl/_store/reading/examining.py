"""Reads all blocks of a valid version, and finds damaged blocks and their original content."""

import dataclasses
import functools
from collections.abc import Iterator

import numpy as np

from jax_cxl import errors
from jax_cxl._store.memory import layout, stripes
from jax_cxl._store.memory.layout import Record
from jax_cxl._store.memory.section import Section
from jax_cxl._store.reading import restoring


@dataclasses.dataclass(frozen=True)
class Block:
    """A block or record of a version, as it lies on its device.

    Attributes:
      what: "data", "table of checksums", "directory", "parity" or "record".
      writer: the process that wrote it, as a position among the processes that saved.
      content: the original content, None if parity cannot restore it.
    """

    what: str
    writer: int
    device: int
    offset: int
    intact: bool
    content: np.ndarray | None

    def __str__(self) -> str:
        return (
            f"{self.what} of process {self.writer} (device {self.device}, offset {self.offset:#x})"
        )


def records(section: Section, of: list[Record]) -> Iterator[Block]:
    """Examines the records of a version on each device that has a copy."""
    for record in of:
        content = np.frombuffer(record.to_bytes(), np.uint8)
        offset = section.geometry.record(record.number, record.writer)
        for device in section.geometry.mirrors:
            intact = section.record_on(device, record.number, record.writer) == record
            yield Block("record", record.writer, device, offset, intact, content)


def blocks(reader: restoring.Reader) -> Iterator[Block]:
    """Examines the blocks of a version: data, tables, directory, and parity."""
    for own, record in zip(reader.stripes, reader.records, strict=True):
        table, known = reader.table(own.writer), _known(reader, own.writer)
        for row in range(own.num_rows):
            yield from _row(own, record.data_blocks, table, known, row)


def _known(reader: restoring.Reader, writer: int) -> np.ndarray:
    kinds = [reader.table(writer).view(np.uint8)]
    if writer == 0:
        kinds.append(reader.structure.directory)
    padded = [np.pad(data, (0, -len(data) % layout.BLOCK_BYTES)) for data in kinds]
    return np.concatenate(padded).reshape(-1, layout.BLOCK_BYTES)


def _row(
    own: stripes.Stripes, data_blocks: int, table: np.ndarray, known: np.ndarray, row: int
) -> Iterator[Block]:
    geometry = own.section.geometry
    first = row * geometry.blocks_per_row
    contents: list[np.ndarray] = []
    numbers = range(first, min(first + geometry.blocks_per_row, own.num_blocks))
    for number in numbers:
        content: np.ndarray | None = np.empty(layout.BLOCK_BYTES, np.uint8)
        if number < data_blocks:
            what = "data"
            try:
                own.read_all_checked(range(number, number + 1), table[number : number + 1], content)
            except errors.StoreError:
                content = None  # Not even parity has it.
        else:
            is_table = number < data_blocks + layout.table_blocks(data_blocks)
            what = "table of checksums" if is_table else "directory"
            content = known[number - data_blocks]
        intact = content is not None and np.array_equal(own.read(number), content)
        yield Block(what, own.writer, *own.place(number), intact, content)
        contents += [content] if content is not None else []
    if geometry.parity and len(contents) == len(numbers):
        place = own.parity_device(row), own.offset(row)
        content = functools.reduce(np.bitwise_xor, contents)
        intact = np.array_equal(own.section.devices.read(*place, layout.BLOCK_BYTES), content)
        yield Block("parity", own.writer, *place, intact, content)
