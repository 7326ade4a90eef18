"""The section of a name: the memory in which its versions are."""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from jax_cxl import errors
from jax_cxl._store.memory import catalog, layout
from jax_cxl._store.memory.devices import Devices
from jax_cxl._store.memory.record import Record

if TYPE_CHECKING:
    from jax_cxl._store.writing.fence import Claim


@dataclasses.dataclass
class Section:
    """The memory of one name, open for reading, and for writing if this job has a claim.

    Attributes:
      devices: the memory of the store.
      entry: the name's entry in the catalog.
      what: what a version is called in messages: "version" or "snapshot".
      claim: the claim of this job; None while it has none.
    """

    devices: Devices
    entry: catalog.Entry
    what: str
    claim: "Claim | None" = None

    def __post_init__(self) -> None:
        self.geometry = catalog.geometry_of(self.devices, self.entry)

    @classmethod
    def find(cls, devices: Devices, name: str) -> Self | None:
        """Returns the section of a name, None if the store does not have the name."""
        entry = catalog.find(devices, name)
        return None if entry is None else cls(devices, entry, "version")

    @property
    def text(self) -> str:
        """How messages name the section."""
        where = repr(self.devices.where)
        return where if self.what == "snapshot" else f"{self.entry.name!r} of {where}"

    def text_of(self, version: int) -> str:
        """How messages name a version."""
        if self.what == "snapshot":
            return f"the snapshot of step {version}"
        return f"version {version} of {self.entry.name!r}"

    def write(self, device: int, offset: int, data: Any) -> None:
        """Copies bytes to a device if no later job has claimed the section."""
        self.check_fence(device)
        self.devices.write(device, offset, data)

    def store_word(self, device: int, offset: int, value: int) -> None:
        """Stores a word if no later job has claimed the section."""
        self.check_fence(device)
        self.devices.store_word(device, offset, value)

    def write_entry(self, device: int, offset: int, data: bytes) -> None:
        """Writes an entry whose first word says that the rest is complete."""
        self.store_word(device, offset, 0)
        self.write(device, offset + 8, data[8:])
        self.store_word(device, offset, int.from_bytes(data[:8], "little"))

    def check_fence(self, device: int) -> None:
        """Checks that no later job has claimed the section.

        Raises:
          StoreError: a later job has claimed it.
        """
        if self.claim is not None and device not in self.devices.lost:
            self.claim.check(self, device)

    def check_room(self, needed: int, advice: Callable[[int], str]) -> None:
        """Checks that the section has as many bytes of each device as a tree needs.

        Raises:
          PoolTooSmallError: it has fewer. `advice` takes the needed size, and returns the end of
            the message.
        """
        has = self.geometry.end - self.geometry.start
        if needed > has:
            raise errors.PoolTooSmallError(
                f"{self.text} is too small for this tree: {advice(needed)}"
            )

    def erase_records(self, device: int, number: int) -> None:
        """Erases all records in the area of a save."""
        self.devices.write(device, self.geometry.area(number), bytes(layout.RECORDS_BYTES))

    def record(self, number: int, writer: int) -> Record | None:
        """Returns the record of a writer in the area of a save; None if there is none.

        Each mirror has a copy of the record. The newest copy counts, because a path that was
        missing for a time has an older record. With parity, one device may have no copy or a
        damaged one, in addition to the devices that are known to be lost.
        """
        found = self._records(number, writer)
        newest = max(filter(None, found.values()), key=lambda record: record.number, default=None)
        known = [d for d in found if d not in self.devices.lost and d not in self.devices.blank]
        missing = sum(found[device] != newest for device in known)
        return newest if missing <= self.geometry.parity else None

    def newest_record(self, number: int, writer: int) -> Record | None:
        """Returns the newest copy of a record, even if a save ended before all devices had it."""
        found = filter(None, self._records(number, writer).values())
        return max(found, key=lambda record: record.number, default=None)

    def record_on(self, device: int, number: int, writer: int) -> Record | None:
        """Returns the record of a writer in the area of a save on one device, or None."""
        offset = self.geometry.record(number, writer)
        data = self.devices.read_entry(device, offset, layout.RECORD_BYTES)
        return Record.from_bytes(data) if data else None

    def words(self, number: int) -> np.ndarray:
        """Returns the first words of the records in the area of a save, a row for each mirror."""
        begin = self.geometry.record(number, 0)
        return np.stack(
            [
                self.devices.read(device, begin, layout.RECORDS_BYTES).view(np.uint64)[
                    :: layout.RECORD_BYTES // 8
                ]
                for device in self.geometry.mirrors
            ]
        )

    def _records(self, number: int, writer: int) -> dict[int, Record | None]:
        return {d: self.record_on(d, number, writer) for d in self.geometry.mirrors}
