"""Finds the valid versions of a name."""

import numpy as np

from jax_cxl._store.memory import layout
from jax_cxl._store.memory.record import Record
from jax_cxl._store.memory.section import Section
from jax_cxl._store.trees import replicas

Records = list[Record]


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


def all_valid(section: Section, last: int | None = None) -> list[Records]:
    """Returns the valid versions whose numbers are at most `last`, the newest first.

    Raises:
      StoreError: the memory is no longer that of this name: a file was deleted or replaced.
    """
    section.devices.check_paths()
    seen = None
    while True:
        firsts = [section.record(area, 0) for area in range(section.geometry.areas)]
        recent = [r.number for r in firsts if r and (last is None or r.number <= last)]
        found = [records for number in recent if (records := version(section, number))]
        # The areas are read one after another. Meanwhile a publisher may complete a version in an
        # area that was already read, and then erase an older version before its area is read. Then
        # this process finds neither version. So if it finds nothing, it reads the areas again,
        # until the records are the same twice in a row.
        if found or firsts == seen:
            return sorted(found, key=lambda records: -records[0].number)
        seen = firsts


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
