"""Finds damaged blocks of valid versions, and repairs them and lost paths from parity."""

import dataclasses
import functools
from collections.abc import Iterator, Sequence

import numpy as np

from jax_cxl import _text, errors
from jax_cxl._store.memory import catalog, checksum, layout, opening, stripes
from jax_cxl._store.memory.devices import Devices
from jax_cxl._store.memory.layout import Record
from jax_cxl._store.memory.section import Section
from jax_cxl._store.reading import restoring


@dataclasses.dataclass(frozen=True)
class Repaired:
    """What a repair has written, and the versions with damage that it could not repair, by name."""

    written: int
    damaged: tuple[str, ...]


def repair(devices: Devices, sections: Sequence[Section]) -> Repaired:
    """Repairs the valid versions, and gives blank devices their catalog and superblocks.

    No other process uses the memory, which was opened for a repair.
    """
    damaged = opening.damaged_superblocks(devices)
    for device in sorted({device for device, _ in damaged}):
        opening.write_superblocks(devices.core, devices.parity, [device])
    written = len(damaged)
    for device, offset in devices.sessions.damaged():
        devices.write(device, offset, bytes(layout.SESSION_BYTES))
        written += 1
    for section in sections:
        for device, offset, word in section.damaged_numbers():
            devices.store_word(device, offset, word)
            written += 1
    if not devices.parity:
        if written:
            return Repaired(written, ())
        raise errors.StoreError(
            f"{devices.where!r} has no parity, so lost blocks cannot be rebuilt: restore a"
            " checkpoint. To have parity in the future, format the store with parity=1, which"
            " clears it"
        )
    hopeless: list[str] = []
    for section in sections:
        found = section.all_valid()
        # A blank device may be one that was missing for a time, and have records of older versions.
        # They must not be taken for records of the present versions.
        for device in devices.blank:
            for area in range(section.geometry.areas):
                section.erase_records(device, area)
        for records in found:
            wrote, complete = _mend(section, records)
            written += wrote
            if not complete:
                hopeless.append(section.text_of(records[0].version))
    # A device counts as blank as long as it has no superblock. So the superblock comes last: if
    # this repair is interrupted, the next one still finds the device blank, and starts over.
    catalog.copy_to(devices, devices.blank)
    opening.write_superblocks(devices.core, devices.parity, devices.blank)
    devices.blank = ()
    return Repaired(written, tuple(hopeless))


def _mend(section: Section, records: list[Record]) -> tuple[int, bool]:
    """Repairs the blocks and then the records of a version.

    Returns how many it has written, and whether all blocks are intact now.
    """
    written, complete = 0, True
    try:
        for block in examine_blocks(restoring.Reader(section, records)):
            if block.intact:
                continue
            if block.content is None:
                complete = False
                _log(section, records, f"{block} is lost")
                continue
            section.write(block.device, block.offset, block.content)
            written += 1
    except errors.StoreError as error:
        complete = False
        _log(section, records, str(error))
    for record in examine_records(section, records):
        if not record.intact:
            data = records[record.writer].to_bytes()
            section.write_entry(record.device, record.offset, data)
            written += 1
    return written, complete


def _log(section: Section, records: list[Record], problem: str) -> None:
    _text.warn("%s cannot be mended: %s", section.text_of(records[0].version), problem)


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


def examine_records(section: Section, of: list[Record]) -> Iterator[Block]:
    """Examines the records of a version on each device that has a copy."""
    for record in of:
        content = np.frombuffer(record.to_bytes(), np.uint8)
        offset = section.geometry.record(record.number, record.writer)
        for device in section.geometry.mirrors:
            intact = section.record_on(device, record.number, record.writer) == record
            yield Block("record", record.writer, device, offset, intact, content)


def examine_blocks(reader: restoring.Reader) -> Iterator[Block]:
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
    # What repairs the data of a row, even if the padding of these blocks is damaged too.
    others = {number: known[number - data_blocks] for number in numbers if number >= data_blocks}
    for number in numbers:
        found = own.read(number)
        content: np.ndarray | None = others.get(number, found)
        if number < data_blocks:
            what = "data"
            if checksum.of(found) != table[number]:
                rebuilt = own.rebuild(number, others) if geometry.parity else found
                content = rebuilt if checksum.of(rebuilt) == table[number] else None
        else:
            is_table = number < data_blocks + layout.table_blocks(data_blocks)
            what = "table of checksums" if is_table else "directory"
        intact = content is not None and np.array_equal(found, content)
        yield Block(what, own.writer, *own.place(number), intact, content)
        contents += [content] if content is not None else []
    if geometry.parity and len(contents) == len(numbers):
        place = own.parity_device(row), own.offset(row)
        content = functools.reduce(np.bitwise_xor, contents)
        intact = np.array_equal(own.section.devices.read(*place, layout.BLOCK_BYTES), content)
        yield Block("parity", own.writer, *place, intact, content)
