"""Lists the names of a store, their valid versions, and why other areas have no valid version."""

import dataclasses
import datetime
from collections.abc import Iterator

import numpy as np

from jax_cxl import _text, errors
from jax_cxl._store.memory import catalog
from jax_cxl._store.memory.devices import Devices
from jax_cxl._store.memory.layout import Records
from jax_cxl._store.memory.section import Section
from jax_cxl._store.reading import restoring


@dataclasses.dataclass(frozen=True)
class Area:
    """An area of a section, which has room for one version."""

    area: int
    state: str
    version: int | None = None
    time: float | None = None
    processes: int | None = None
    bytes: int | None = None
    leaves: int | None = None
    why: str = ""

    def line(self, entry: catalog.Entry) -> str:
        """Returns the line that the command prints about this area of the name `entry`."""
        if self.state == "valid" and self.time is not None:
            moment = datetime.datetime.fromtimestamp(self.time).astimezone()
            when = f"{moment:%Y-%m-%d %H:%M:%S%z}"
            if not entry.keep:
                return f"made {when}"  # The rows of a trained table are not bytes of a version.
            processes = f"{self.processes} {'process' if self.processes == 1 else 'processes'}"
            leaves = f"{self.leaves} {'leaf' if self.leaves == 1 else 'leaves'}"
            return f"version {self.version}: {when}, {processes}, {leaves}, {self.bytes} bytes"
        why = f" ({self.why})" if self.why else ""
        of = "" if self.version is None else f" of version {self.version}"
        return f"area {self.area}{of}: {self.state}{why}"


def areas(section: Section) -> list[Area]:
    """Returns all areas: valid versions, the newest first, then the others."""
    described: list[Area] = []
    while not described and (found := section.all_valid()):
        described = [area for records in found if (area := _valid(section, records))]
    taken = [of.area for of in described]
    others = [area for area in range(section.geometry.areas) if area not in taken]
    return described + [_other(section, area) for area in others]


def lines(devices: Devices) -> Iterator[str]:
    """Yields what the command prints."""
    yield (
        f"{devices.where}: parity={devices.parity}, {devices.count} x"
        f" {devices.core.device_bytes} bytes, {catalog.free_bytes(devices)} free"
    )
    for device in devices.blank:
        yield f"device {device} is lost; repair rebuilds it"
    for section in sections(devices):
        yield f"{_text.printable(section.entry.name)}: {_size(section.entry)}"
        for area in areas(section):
            yield f"  {area.line(section.entry)}"


def _size(entry: catalog.Entry) -> str:
    size = f"{entry.end - entry.start} bytes"
    if entry.name.startswith(catalog.RESIDUALS):
        return f"{size} of a running program"
    if entry.keep:
        room = f"room for {entry.keep} versions (keep={entry.keep}) and the next one"
    else:
        room = "a table"
    return f"{size} until it is deleted: {room}"


def sections(devices: Devices) -> list[Section]:
    """Returns the section of each name."""
    return [Section(devices, entry) for entry in catalog.entries(devices)]


def _valid(section: Section, records: Records) -> Area | None:
    """Describes a version; returns None if a job has overwritten it meanwhile."""
    area = records[0].number % section.geometry.areas
    version, time = records[0].version, max(record.time for record in records)
    try:
        reader = restoring.Reader(section, records)
    except errors.StoreError as error:
        if section.version(records[0].number) != records:
            return None
        return Area(area, "damaged", version, time, len(records), why=str(error))
    found = reader.leaves.values()
    size = sum(leaf.stored_bytes for leaf in found if leaf.dtype)
    return Area(area, "valid", version, time, len(records), size, len(found))


def _other(section: Section, area: int) -> Area:
    if not np.any(section.words(area)):
        return Area(area, "empty")
    first = section.record(area, 0)
    records = section.version(first.number) if first else None
    if records and (described := _valid(section, records)):
        return described  # It has become valid since.
    writers = section.writers_with_records(area)
    found = [section.record(area, writer) for writer in writers]
    newest = max((r for r in found if r is not None), key=lambda r: r.number, default=None)
    if newest is None:
        return Area(area, "being written or torn")
    of_it = [r.writer for r in found if r and (r.number, r.token) == (newest.number, newest.token)]
    missing = [writer for writer in range(newest.writers) if writer not in of_it]
    why = f"without the parts of processes {missing} of {newest.writers}"
    return Area(area, "being written or torn", newest.version, None, newest.writers, why=why)
