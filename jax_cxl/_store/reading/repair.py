"""Repairs lost paths and damaged blocks from parity."""

import dataclasses
from collections.abc import Callable, Sequence

from jax_cxl import _text, errors
from jax_cxl._store.memory import catalog, layout, superblocks
from jax_cxl._store.memory.devices import Devices
from jax_cxl._store.memory.layout import Record
from jax_cxl._store.memory.section import Section
from jax_cxl._store.reading import examining, restoring

Gather = Callable[[list[int]], list[tuple[int, ...]]]


@dataclasses.dataclass(frozen=True)
class Repaired:
    """What a repair has done.

    Attributes:
      written: how many blocks, records and superblocks this process has written.
      damaged: the names of the versions with damage that parity cannot repair, for messages.
    """

    written: int
    damaged: tuple[str, ...]


def repair(
    devices: Devices, sections: Sequence[Section], share: int, shares: int, gather: Gather
) -> Repaired:
    """Repairs the valid versions, and gives blank devices their catalog and superblocks.

    All processes call it, while no process saves.

    Args:
      devices: the memory, opened for a repair. It has no blank devices afterwards.
      share: position of this process among those that repair.
      gather: takes numbers of this process, waits until all processes have called it, and returns
        the numbers of all.
    """
    damaged = superblocks.damaged(devices) if share == 0 else []
    for device in sorted({device for device, _ in damaged}):
        superblocks.write(devices.core, devices.parity, [device])
    written = len(damaged)
    for device, offset in devices.sessions.damaged() if share == 0 else ():
        devices.write(device, offset, bytes(layout.SESSION_BYTES))
        written += 1
    for section in sections if share == 0 else ():
        for device, offset, word in section.damaged_numbers():
            devices.store_word(device, offset, word)
            written += 1
    if not devices.parity:
        if any(told for (told,) in gather([written])):
            return Repaired(written, ())
        raise errors.StoreError(
            f"{devices.where!r} has no parity, so lost blocks cannot be rebuilt: restore a"
            " checkpoint. To have parity in the future, format the store with parity=1, which"
            " clears it"
        )
    hopeless: list[str] = []
    for section in sections:
        wrote, lost = _repair_section(section, share, shares, gather)
        written += wrote
        hopeless += lost
    # A device counts as blank as long as it has no superblock. So write the blocks first, then the
    # records and the catalog, and the superblock last. If this repair is interrupted, the next one
    # still finds the device blank, and starts over.
    if share == 0:
        catalog.copy_to(devices, devices.blank)
        superblocks.write(devices.core, devices.parity, devices.blank)
    gather([0])
    devices.blank = ()
    return Repaired(written, tuple(hopeless))


def _repair_section(
    section: Section, share: int, shares: int, gather: Gather
) -> tuple[int, list[str]]:
    """Repairs the valid versions of one name.

    Returns how many blocks and records this process has written, and the names of the versions that
    stay damaged.
    """
    found = section.all_valid()
    if share == 0:
        # A blank device may be one that was missing for a time, and have records of older versions.
        # They must not be taken for records of the present versions.
        for device in section.devices.blank:
            for area in range(section.geometry.areas):
                section.erase_records(device, area)
    written, hopeless = 0, []
    for position, records in enumerate(found):
        wrote, complete = _mend(section, records, share, shares)
        written += wrote
        if not complete:
            hopeless.append(position)
    told = [gather([position in hopeless]) for position in range(section.geometry.areas)]
    if share == 0:
        for records in found:
            for record in examining.records(section, records):
                if not record.intact:
                    data = records[record.writer].to_bytes()
                    section.write_entry(record.device, record.offset, data)
                    written += 1
    gather([0])
    return written, [
        section.text_of(records[0].version)
        for records, failed in zip(found, told, strict=False)
        if any(failed_there for (failed_there,) in failed)
    ]


def _mend(section: Section, records: list[Record], share: int, shares: int) -> tuple[int, bool]:
    """Repairs this process's share of the blocks of a version.

    Returns how many blocks it has written, and whether all blocks of its share are intact now.
    """
    written, complete = 0, True
    try:
        reader = restoring.Reader(section, records)
        for block in examining.blocks(reader, share, shares):
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
    return written, complete


def _log(section: Section, records: list[Record], problem: str) -> None:
    _text.warn("%s cannot be mended: %s", section.text_of(records[0].version), problem)
