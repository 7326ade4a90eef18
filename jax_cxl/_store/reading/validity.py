"""Finds the valid versions of a name."""

import numpy as np

from jax_cxl._store.memory import catalog, layout
from jax_cxl._store.memory.devices import Devices
from jax_cxl._store.memory.record import Record
from jax_cxl._store.memory.section import Section
from jax_cxl._store.trees import replicas

Records = list[Record]


def find(devices: Devices, name: str) -> tuple[Section, list[Records]] | None:
    """Returns the section of a name, and its valid versions as `all_valid` does.

    Returns None if the store does not have the name.
    """
    while (section := Section.find(devices, name)) is not None:
        found = all_valid(section)
        # If the name was deleted meanwhile, another name may have this memory now.
        if catalog.is_current(devices, section.entry):
            return section, found
    return None


def version(section: Section, number: int) -> Records | None:
    """Returns the records of a save if it is valid, else None."""
    records = complete(section, number)
    return None if records is None or replicas.differing(records) else records


def complete(section: Section, number: int) -> Records | None:
    """Returns the records of a save if all processes have written their parts, else None."""
    first = section.record(number, 0)
    if first is None or first.number != number or not 1 <= first.writers <= layout.MAX_PROCESSES:
        return None
    records = [first]
    for writer in range(1, first.writers):
        record = section.record(number, writer)
        if record is None or _key(record) != _key(first) or record.writer != writer:
            return None
        records.append(record)
    return records


def all_valid(section: Section) -> list[Records]:
    """Returns the valid versions, the newest first.

    Each version was valid at some time during the call. The first one was the newest at some time
    during the call.

    Raises:
      StoreError: the memory is no longer that of this name: a file was deleted or replaced.
    """
    section.devices.check_paths()
    start = before = _firsts(section)
    while True:
        found = [records for r in before if r and (records := version(section, r.number))]
        found.sort(key=lambda records: -records[0].number)
        # The areas are read one after another. Meanwhile a publisher may complete a version in an
        # area that was already read, and erase a version in an area that was not. So this process
        # may find only old versions, or none. What it has found counts if no area has changed, or
        # if the newest of it was completed during this call.
        after = _firsts(section)
        if after == before or (found and found[0][0] not in start):
            return found
        before = after


def _firsts(section: Section) -> list[Record | None]:
    """Returns the records of the first process in all areas."""
    return [section.record(area, 0) for area in range(section.geometry.areas)]


def last_number(section: Section) -> int:
    """Returns the greatest number that any process has given to a save; 0 if there is none."""
    numbers = [0]
    for area in range(section.geometry.areas):
        numbers += [
            record.number
            for writer in writers_with_records(section, area)
            if (record := section.newest_record(area, writer)) is not None
        ]
    return max(numbers)


def writers_with_records(section: Section, area: int) -> list[int]:
    """Returns the processes that have a record of any save in an area."""
    return [int(writer) for writer in np.flatnonzero(np.any(section.words(area), axis=0))]


def _key(record: Record) -> tuple[int, int, int, int, int]:
    return record.number, record.token, record.version, record.writers, record.tree
