"""Finds the valid snapshots."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from jax_cxl._snapshots import layout, replicas

if TYPE_CHECKING:
    from jax_cxl._snapshots.memory import Memory

Records = list[layout.Record]


def snapshot(memory: "Memory", number: int) -> Records | None:
    """Returns the records of a save that is valid, else None."""
    records = complete(memory, number)
    return None if records is None or replicas.differing(records) else records


def complete(memory: "Memory", number: int) -> Records | None:
    """Returns the records of a save to which all processes have written, else None."""
    first = memory.record(number, 0)
    if first is None or first.number != number or not 1 <= first.writers <= layout.MAX_PROCESSES:
        return None
    records = [first]
    for writer in range(1, first.writers):
        record = memory.record(number, writer)
        if record is None or _key(record) != _key(first) or record.writer != writer:
            return None
        records.append(record)
    return records


def all_valid(memory: "Memory", last: int) -> list[Records]:
    """Returns the valid snapshots whose numbers are at most `last`, the newest first."""
    found = []
    for first in _first_records(memory):
        if first.number <= last and (records := snapshot(memory, first.number)):
            found.append(records)
    return sorted(found, key=lambda records: -records[0].number)


def last_number(memory: "Memory") -> int:
    """Returns the greatest number that any process has given to a save; 0 if there is none."""
    numbers = [0]
    for area in range(memory.geometry.areas):
        numbers += [
            record.number
            for writer in writers_with_records(memory, area)
            if (record := memory.newest_record(area, writer)) is not None
        ]
    return max(numbers)


def writers_with_records(memory: "Memory", area: int) -> list[int]:
    """Returns the processes that have records in an area, of any save."""
    begin = memory.geometry.record(area, 0)
    words = [
        memory.read(device, begin, layout.RECORDS_BYTES).view(np.uint64)[
            :: layout.RECORD_BYTES // 8
        ]
        for device in range(memory.geometry.num_devices)
    ]
    return [int(writer) for writer in np.flatnonzero(np.any(words, axis=0))]


def _first_records(memory: "Memory") -> Iterator[layout.Record]:
    for area in range(memory.geometry.areas):
        if record := memory.record(area, 0):
            yield record


def _key(record: layout.Record) -> tuple[int, int, int, int, int]:
    return record.number, record.token, record.step, record.writers, record.tree
