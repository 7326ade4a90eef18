"""Repairs lost paths and damaged blocks from parity."""

import dataclasses
from collections.abc import Sequence

from jax_cxl import _text, errors
from jax_cxl._store.memory import catalog, layout, superblocks
from jax_cxl._store.memory.devices import Devices
from jax_cxl._store.memory.layout import Record
from jax_cxl._store.memory.section import Section
from jax_cxl._store.reading import examining, restoring


@dataclasses.dataclass(frozen=True)
class Repaired:
    """What a repair has written, and the versions with damage that it could not repair, by name."""

    written: int
    damaged: tuple[str, ...]


def repair(devices: Devices, sections: Sequence[Section]) -> Repaired:
    """Repairs the valid versions, and gives blank devices their catalog and superblocks.

    No other process uses the memory, which was opened for a repair.
    """
    damaged = superblocks.damaged(devices)
    for device in sorted({device for device, _ in damaged}):
        superblocks.write(devices.core, devices.parity, [device])
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
    superblocks.write(devices.core, devices.parity, devices.blank)
    devices.blank = ()
    return Repaired(written, tuple(hopeless))


def _mend(section: Section, records: list[Record]) -> tuple[int, bool]:
    """Repairs the blocks and then the records of a version.

    Returns how many it has written, and whether all blocks are intact now.
    """
    written, complete = 0, True
    try:
        for block in examining.blocks(restoring.Reader(section, records)):
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
    for record in examining.records(section, records):
        if not record.intact:
            data = records[record.writer].to_bytes()
            section.write_entry(record.device, record.offset, data)
            written += 1
    return written, complete


def _log(section: Section, records: list[Record], problem: str) -> None:
    _text.warn("%s cannot be mended: %s", section.text_of(records[0].version), problem)
