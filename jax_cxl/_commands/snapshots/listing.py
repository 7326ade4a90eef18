"""Lists the areas of snapshots: valid snapshots, and why other areas have none."""

import dataclasses
import datetime
import json
from typing import Any

import numpy as np

from jax_cxl import errors
from jax_cxl._snapshots import layout, restoring, validity
from jax_cxl._snapshots.memory import Memory


@dataclasses.dataclass(frozen=True)
class Area:
    """An area.

    Attributes:
      area: its number, from 0.
      state: "valid", "damaged", "empty", or "being written or torn".
      step: step of its snapshot; None if there is none.
      time: when it was complete, in seconds since 1970.
      processes: how many have saved it.
      bytes: bytes of all arrays.
      leaves: how many leaves the tree has.
      why: why it is not valid.
    """

    area: int
    state: str
    step: int | None = None
    time: float | None = None
    processes: int | None = None
    bytes: int | None = None
    leaves: int | None = None
    why: str = ""

    def line(self) -> str:
        """Returns a line of text."""
        if self.state == "valid" and self.time is not None and self.bytes is not None:
            when = datetime.datetime.fromtimestamp(self.time).astimezone()
            counts = f"{_counted(self.processes, 'process')}, {_counted(self.leaves, 'leaf')}"
            return f"step {self.step}: {when:%Y-%m-%d %H:%M:%S%z}, {counts}, {self.bytes} bytes"
        why = f" ({self.why})" if self.why else ""
        of = "" if self.step is None else f" of step {self.step}"
        return f"area {self.area}{of}: {self.state}{why}"


def areas(memory: Memory) -> list[Area]:
    """Returns all areas: valid snapshots, the newest first, then the others."""
    found = []
    for area in range(memory.geometry.areas):
        first = memory.record(area, 0)
        records = validity.snapshot(memory, first.number) if first else None
        found.append((records, _valid(memory, area, records) if records else _other(memory, area)))
    found.sort(key=lambda item: (not item[0], -item[0][0].number if item[0] else item[1].area))
    return [described for _, described in found]


def as_json(memory: Memory) -> str:
    """Returns what `--json` prints."""
    geometry = memory.geometry
    described: dict[str, Any] = {
        "where": memory.where,
        "keep": geometry.keep,
        "parity": geometry.parity,
        "devices": geometry.num_devices,
        "device_bytes": geometry.device_bytes,
        "lost_devices": list(memory.blank),
        "areas": [dataclasses.asdict(area) for area in areas(memory)],
    }
    return json.dumps(described, indent=2)


def _valid(memory: Memory, area: int, records: list[layout.Record]) -> Area:
    step, time = records[0].step, max(record.time for record in records)
    try:
        reader = restoring.Reader(memory, records)
    except errors.SnapshotError as error:
        return Area(area, "damaged", step, time, len(records), why=str(error))
    return Area(area, "valid", step, time, len(records), reader.data_bytes, len(reader.leaves))


def _other(memory: Memory, area: int) -> Area:
    begin = memory.geometry.area(area)
    if not any(
        np.any(memory.read(device, begin, layout.RECORDS_BYTES))
        for device in range(memory.geometry.num_devices)
    ):
        return Area(area, "empty")
    found = [memory.record(area, writer) for writer in validity.writers_with_records(memory, area)]
    newest = max((r for r in found if r is not None), key=lambda r: r.number, default=None)
    if newest is None:
        return Area(area, "being written or torn")
    of_it = [r.writer for r in found if r and (r.number, r.token) == (newest.number, newest.token)]
    missing = [writer for writer in range(newest.writers) if writer not in of_it]
    why = f"without the parts of processes {missing} of {newest.writers}"
    return Area(area, "being written or torn", newest.step, None, newest.writers, why=why)


def _counted(number: int | None, noun: str) -> str:
    plurals = {"process": "processes", "leaf": "leaves"}
    return f"{number} {noun if number == 1 else plurals[noun]}"
