"""Lists the names of a store, their valid versions, and why other areas have no valid version."""

import datetime
from collections.abc import Iterator

from jax_cxl import _text, errors
from jax_cxl._store.memory import catalog
from jax_cxl._store.memory.devices import Devices
from jax_cxl._store.memory.layout import Records
from jax_cxl._store.memory.section import Section
from jax_cxl._store.reading import restoring

_TORN = "being written or torn"


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
        for line in _areas(section):
            yield f"  {line}"


def sections(devices: Devices) -> list[Section]:
    return [Section(devices, entry) for entry in catalog.entries(devices)]


def _size(entry: catalog.Entry) -> str:
    size = f"{entry.end - entry.start} bytes"
    if entry.name.startswith(catalog.RESIDUALS):
        return f"{size} of a running program"
    if entry.keep:
        room = f"room for {entry.keep} versions (keep={entry.keep}) and the next one"
    else:
        room = "a table"
    return f"{size} until it is deleted: {room}"


def _areas(section: Section) -> list[str]:
    """Describes all areas: valid versions, the newest first, then the others."""
    count = section.geometry.areas
    described: dict[int, str] = {}
    while not described and (found := section.all_valid()):
        texts = {records[0].number % count: _valid(section, records) for records in found}
        described = {area: text for area, text in texts.items() if text}
    others = (_other(section, area) for area in range(count) if area not in described)
    return [*described.values(), *others]


def _valid(section: Section, records: Records) -> str | None:
    """Describes a version; returns None if a job has overwritten it meanwhile."""
    first = records[0]
    try:
        found = restoring.Reader(section, records).leaves.values()
    except errors.StoreError as error:
        if section.version(first.number) != records:
            return None
        area = first.number % section.geometry.areas
        return f"area {area} of version {first.version}: damaged ({error})"
    time = max(record.time for record in records)
    moment = datetime.datetime.fromtimestamp(time).astimezone()
    when = f"{moment:%Y-%m-%d %H:%M:%S%z}"
    if not section.entry.keep:
        return f"made {when}"  # The rows of a trained table are not bytes of a version.
    processes = f"{len(records)} {'process' if len(records) == 1 else 'processes'}"
    leaves = f"{len(found)} {'leaf' if len(found) == 1 else 'leaves'}"
    size = sum(leaf.stored_bytes for leaf in found if leaf.dtype)
    return f"version {first.version}: {when}, {processes}, {leaves}, {size} bytes"


def _other(section: Section, area: int) -> str:
    if not (writers := section.writers_with_records(area)):
        return f"area {area}: empty"
    first = section.record(area, 0)
    records = section.version(first.number) if first else None
    if records and (described := _valid(section, records)):
        return described  # It has become valid since.
    found = [section.record(area, writer) for writer in writers]
    newest = max((r for r in found if r is not None), key=lambda r: r.number, default=None)
    if newest is None:
        return f"area {area}: {_TORN}"
    of_it = [r.writer for r in found if r and (r.number, r.token) == (newest.number, newest.token)]
    missing = [writer for writer in range(newest.writers) if writer not in of_it]
    why = f"without the parts of processes {missing} of {newest.writers}"
    return f"area {area} of version {newest.version}: {_TORN} ({why})"
