"""The catalog: which names a store has, and where the section of each name is.

An entry never changes while its name exists. To delete a name, a process first stores a word in the
name's section, and then looks for leases and claims. A process that leases or claims a section does
so first, and then looks for this word. So at least one of the two processes sees the other. The
entry is removed only if no lease or claim was found, so a refused deletion hides the name from
nobody.
"""

import dataclasses
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Self

import numpy as np

from jax_cxl import errors
from jax_cxl._store.memory import checksum, layout
from jax_cxl._store.memory.devices import Devices

MAX_NAME_BYTES = 128
# Names of memory in which a running program keeps residuals begin with this.
RESIDUALS = "residuals "
_LOCK_SECONDS = 60


@dataclasses.dataclass(frozen=True)
class Entry:
    """An entry of the catalog.

    Attributes:
      generation: grows with each new entry of a slot, so that a path that was missing for a time
        does not bring back a deleted name.
      keep: how many versions are kept; 0 for a table, which has one area and no versions.
    """

    identity: int
    slot: int
    generation: int
    start: int
    end: int
    keep: int
    created: float
    name: str

    _FORMAT = struct.Struct("<QIIQQQdH")

    @property
    def offset(self) -> int:
        """Where the entry is on each device."""
        return layout.CATALOG_OFFSET + self.slot * layout.ENTRY_BYTES

    def to_bytes(self) -> bytes:
        """Returns the entry. Its first word is the identity."""
        name = self.name.encode()
        numbers = (self.identity, self.slot, self.generation, self.start, self.end, self.keep)
        data = self._FORMAT.pack(*numbers, self.created, len(name)) + name
        return checksum.seal(data, layout.ENTRY_BYTES)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self | None:
        """Reads an entry. Returns None if the bytes are not one, or are damaged."""
        if not checksum.is_sealed(data):
            return None
        *fields, size = cls._FORMAT.unpack_from(data)
        fields.append(data[cls._FORMAT.size :][:size].decode(errors="replace"))
        return cls(*fields)


def check_name(name: object) -> str:
    """Checks a name, and returns it."""
    if not isinstance(name, str):
        raise TypeError(f"name={name!r} must be a str")
    if not name or not name.isprintable() or len(name.encode()) > MAX_NAME_BYTES:
        raise ValueError(f"name={name!r} must have 1 to {MAX_NAME_BYTES} printable bytes")
    return name


def check_new_name(name: object) -> str:
    """Checks a name for data, and returns it."""
    name = check_name(name)
    if name.startswith(RESIDUALS):  # Any process deletes residuals that nobody uses.
        raise ValueError(f"name={name!r} must not begin with {RESIDUALS!r}: choose another name")
    return name


def entries(devices: Devices) -> list[Entry]:
    """Returns the entries of all names, sorted by name."""
    found = [entry for entry in _newest(devices).values() if entry.name]
    return sorted(found, key=lambda entry: entry.name)


def find(devices: Devices, name: str) -> Entry | None:
    """Returns the entry of a name, None if the store does not have the name."""
    return next((entry for entry in entries(devices) if entry.name == name), None)


def is_current(devices: Devices, entry: Entry) -> bool:
    """Returns whether an entry is still in the catalog."""
    found = [_read(devices, device, entry.slot) for device in devices.mirrors]
    newest = max(filter(None, found), key=lambda other: other.generation, default=None)
    return newest == entry


def has(devices: Devices, entry: Entry) -> bool:
    """Returns whether the catalog has an entry. Reads only one word of the entry."""
    return any(devices.load_word(d, entry.offset) == entry.identity for d in devices.mirrors)


def stays(devices: Devices, entry: Entry) -> bool:
    """Returns whether a section that this process has leased or claimed exists, and stays."""
    ending = geometry_of(devices, entry).ending
    if not any(devices.load_word(device, ending) for device in devices.mirrors):
        return is_current(devices, entry)
    with locked(devices):
        # No process deletes the section while this process has the lock. So if the entry is still
        # there, its deletion was refused, or the process that began the deletion was killed.
        current = is_current(devices, entry)
        if current:
            _store_ending(devices, entry, 0)
        return current


def check_kind(devices: Devices, entry: Entry, keep: int) -> None:
    """Checks that an entry is a table if `keep` is 0, and has versions if not."""
    if bool(entry.keep) != bool(keep):
        kind = "has versions of a tree" if entry.keep else "is a table"
        raise errors.StoreError(f"{entry.name!r} of {devices.where!r} {kind}: choose another name")


def free_bytes(devices: Devices) -> int:
    """Returns the bytes of each device in the largest gap between sections."""
    return max(end - start for start, end in _gaps(devices))


def create(devices: Devices, name: str, keep: int, size: int) -> Entry:
    """Returns the entry of a name. If there is none, makes it with `size` bytes of each device."""
    with locked(devices):
        slots = _newest(devices)
        for entry in slots.values():
            if entry.name == name:
                check_kind(devices, entry, keep)
                return entry
        used = {slot for slot, entry in slots.items() if entry.name}
        slot = min(set(range(layout.MAX_SECTIONS)) - used, default=None)
        if slot is None:
            raise errors.StoreError(
                f"{devices.where!r} has {layout.MAX_SECTIONS} names, the maximum: delete some"
            )
        start, end = _place(devices, name, size)
        identity = layout.random_word()
        generation = slots[slot].generation + 1 if slot in slots else 1
        entry = Entry(identity, slot, generation, start, end, keep, time.time(), name)
        devices.sessions.check_locked()
        _erase(devices, geometry_of(devices, entry))
        _write(devices, entry)
        return entry


def delete(
    devices: Devices, entry: Entry, refused: Callable[[], str | None] = lambda: None
) -> None:
    """Removes an entry if nobody reads its section.

    `refused` may return another reason why the entry must stay. It is called as soon as no process
    can begin to read or to write.
    """
    with locked(devices):
        if not is_current(devices, entry):
            return
        _store_ending(devices, entry, 1)
        try:
            readers = [
                who for area in range(entry.keep + 1) for who in holders(devices, entry, area)
            ]
            advice = "Close its view or table first, or end that process"
            if why := f"{readers[0]} reads it. {advice}" if readers else refused():
                raise errors.StoreError(
                    f"{entry.name!r} of {devices.where!r} cannot be deleted: {why}"
                )
        except BaseException:
            _store_ending(devices, entry, 0)
            raise
        _write(devices, dataclasses.replace(entry, generation=entry.generation + 1, name=""))


def _store_ending(devices: Devices, entry: Entry, value: int) -> None:
    devices.sessions.check_locked()
    for device in devices.mirrors:
        devices.store_word(device, geometry_of(devices, entry).ending, value)


def copy_to(devices: Devices, blank: Sequence[int]) -> None:
    """Writes the catalog onto devices that have been replaced."""
    newest = _newest(devices)
    for device in blank:
        devices.write(device, layout.SESSIONS_OFFSET, bytes(layout.SESSIONS_BYTES))
        size = layout.MAX_SECTIONS * layout.ENTRY_BYTES
        devices.write(device, layout.CATALOG_OFFSET, bytes(size))
        for entry in newest.values():
            devices.write_entry(device, entry.offset, entry.to_bytes())


def lease_of(entry: Entry, number: int) -> int:
    """Returns the word by which a process leases the area of save `number`."""
    return (entry.slot + 1) << 32 | number % (entry.keep + 1)


def holders(devices: Devices, entry: Entry, number: int) -> list[str]:
    """Returns which processes lease the area of save `number`."""
    found: list[str] = devices.sessions.holders_of(lease_of(entry, number))
    return found


def geometry_for(devices: Devices, keep: int) -> layout.Geometry:
    """Returns the geometry of a section that has no place yet."""
    return layout.Geometry(keep, devices.parity, devices.count, 0, 0)


def geometry_of(devices: Devices, entry: Entry) -> layout.Geometry:
    """Returns where the parts of a section are."""
    return layout.Geometry(entry.keep, devices.parity, devices.count, entry.start, entry.end)


@contextmanager
def locked(devices: Devices) -> Iterator[None]:
    """Holds the lock for rare changes, such as those of the catalog."""
    sessions = devices.sessions
    try:
        # This call is inside the `try` because Ctrl-C may raise an exception when it returns.
        sessions.lock(_LOCK_SECONDS)
        yield
    finally:
        sessions.unlock()


def _newest(devices: Devices) -> dict[int, Entry]:
    """Returns the newest entry of each slot that ever had one."""
    devices.check_paths()
    found: dict[int, Entry] = {}
    for device in devices.mirrors:
        size = layout.MAX_SECTIONS * layout.ENTRY_BYTES
        words = devices.read(device, layout.CATALOG_OFFSET, size).view(np.uint64)
        for slot in np.flatnonzero(words[:: layout.ENTRY_BYTES // 8]):
            entry = _read(devices, device, int(slot))
            if entry and entry.generation > getattr(found.get(entry.slot), "generation", 0):
                found[entry.slot] = entry
    return found


def _read(devices: Devices, device: int, slot: int) -> Entry | None:
    offset = layout.CATALOG_OFFSET + slot * layout.ENTRY_BYTES
    data = devices.read_entry(device, offset, layout.ENTRY_BYTES)
    entry = Entry.from_bytes(data) if data else None
    right = entry and entry.slot == slot and entry.start < entry.end <= devices.core.device_bytes
    return entry if right else None


def _write(devices: Devices, entry: Entry) -> None:
    devices.sessions.check_locked()
    for device in devices.mirrors:
        devices.write_entry(device, entry.offset, entry.to_bytes())


def _gaps(devices: Devices) -> list[tuple[int, int]]:
    gaps, at = [], layout.SECTIONS_OFFSET
    for entry in sorted(entries(devices), key=lambda entry: entry.start):
        gaps.append((at, entry.start))
        at = entry.end
    end = devices.core.device_bytes // layout.PAGE_BYTES * layout.PAGE_BYTES
    return [*gaps, (at, max(at, end))]


def _place(devices: Devices, name: str, size: int) -> tuple[int, int]:
    """Returns where a section of `size` bytes fits: in the smallest gap that is large enough."""
    gaps = sorted(_gaps(devices), key=lambda gap: gap[1] - gap[0])
    largest = gaps[-1][1] - gaps[-1][0]
    size = -(-size // layout.PAGE_BYTES) * layout.PAGE_BYTES
    for start, end in gaps:
        if end - start >= size > 0:
            return start, start + size
    raise errors.PoolTooSmallError(
        f"{devices.where!r} is full: {name!r} needs {size} bytes of each path, and the largest gap"
        f" has {largest}. Delete names, or delete the store and make a larger one"
    )


def _erase(devices: Devices, geometry: layout.Geometry) -> None:
    """Clears all of a new section but its blocks: it may hold bytes of an earlier section."""
    for device in devices.usable:
        devices.write(device, geometry.start, bytes(geometry.area(0) - geometry.start))
        for area in range(geometry.areas):
            devices.write(device, geometry.area(area), bytes(layout.RECORDS_BYTES))
