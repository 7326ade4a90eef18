"""The section of a name: its versions, and the claims of the jobs that write them."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, Self

import numpy as np

from jax_cxl import errors
from jax_cxl._store.memory import catalog, checksum, layout
from jax_cxl._store.memory.devices import Devices
from jax_cxl._store.memory.layout import Claim, Record, Records

_WORD = (1 << 64) - 1


class OvertakenError(errors.StoreError):
    """Another job has begun to save under the same name, so this job can no longer save."""


class DeletedError(OvertakenError):
    """The name was deleted, so this job can no longer save."""


@dataclasses.dataclass
class Section:
    """The memory of one name, open for reading, and for writing if this job has a claim.

    Messages call a version of it `what`: "version" or "snapshot".
    """

    devices: Devices
    entry: catalog.Entry
    what: str = "version"
    claim: Claim | None = None

    def __post_init__(self) -> None:
        self.geometry = catalog.geometry_of(self.devices, self.entry)

    @classmethod
    def find(cls, devices: Devices, name: str) -> Self | None:
        """Returns the section of a name, None if the store does not have the name."""
        entry = catalog.find(devices, name)
        return None if entry is None else cls(devices, entry)

    @classmethod
    def find_versions(cls, devices: Devices, name: str) -> tuple[Self, list[Records]] | None:
        """Returns the section of a name and its valid versions, None if there is no such name."""
        while (section := cls.find(devices, name)) is not None:
            found = section.all_valid()
            # If the name was deleted meanwhile, another name may have this memory now.
            if section.is_current():
                return section, found
        return None

    @property
    def text(self) -> str:
        """How messages name the section."""
        where = repr(self.devices.where)
        return where if self.what == "snapshot" else f"{self.entry.name!r} of {where}"

    @property
    def unit(self) -> str:
        """What the number of a version is called."""
        return "step" if self.what == "snapshot" else "version"

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
        """Raises OvertakenError if a later job has claimed the section, or the name was deleted."""
        if self.claim is not None and device not in self.devices.lost:
            self.check_claim(self.claim, device)

    def check_claim(self, claim: Claim, device: int) -> None:
        """Raises OvertakenError if another job has claimed the section since, or it was deleted."""
        if self.devices.is_inherited:
            raise OvertakenError(
                f"the parent of this process saves to {self.text}: let the parent save, or give"
                " this process a place of its own"
            )
        self.check_exists()
        page = self.devices.read(device, self.geometry.claims, layout.PAGE_BYTES)
        incarnations = page.view(np.uint64)[:: layout.CLAIM_BYTES // 8]
        if incarnations[claim.slot] == claim.incarnation == incarnations.max():
            entry = page[claim.slot * layout.CLAIM_BYTES :][: layout.CLAIM_BYTES]
            if entry.tobytes() == claim.to_bytes():
                return
        found = _claims(page)
        own = claim, claim.released  # The process that made the claim may have released it.
        for other in found:
            if other.incarnation > claim.incarnation or (
                other.incarnation == claim.incarnation and other.first and other not in own
            ):
                raise OvertakenError(
                    f"another job saves to {self.text}. It began after this job, so this job"
                    " saves no more. What the other job saves is intact. End one of the"
                    " jobs, or give each job a place of its own"
                )
        # If the claim is gone, it was damaged, or a much older job woke up and overwrote it.
        # Write it again.
        if not set(own) & set(found):
            self.write_claim(claim, [device])

    def check_exists(self) -> None:
        """Raises DeletedError if the name was deleted. Reads only one word."""
        if not catalog.has(self.devices, self.entry):
            raise self.deleted()

    def deleted(self) -> DeletedError:
        """Returns the error for a job that would save to a name that was deleted."""
        return DeletedError(f"{self.text} was deleted, so this job does not save to it")

    def is_current(self) -> bool:
        """Returns whether the name still has this section."""
        return catalog.is_current(self.devices, self.entry)

    def write_claim(self, claim: Claim, devices: Sequence[int]) -> None:
        """Writes a claim on some devices, its first word last."""
        offset = self.geometry.claims + claim.slot * layout.CLAIM_BYTES
        for device in devices:
            self.devices.write_entry(device, offset, claim.to_bytes())

    def claims(self) -> list[Claim]:
        """Returns all claims that are in the page of claims of any device."""
        pages = (
            self.devices.read(device, self.geometry.claims, layout.PAGE_BYTES)
            for device in self.devices.usable
        )
        return list({claim: None for page in pages for claim in _claims(page)})

    def begin(self, number: int, version: int) -> None:
        """Records that the job may begin a save, before anything in that save's area changes.

        A later job clears the number of the save. The version, plus 1, stays, so that no other
        version gets the number of a damaged version.
        """
        assert self.claim is not None
        begun = self.geometry.begun(self.claim.slot)
        for device in self.geometry.mirrors:
            self.store_word(device, begun, checksum.seal_number(number))
            if version + 1 < checksum.NUMBERS:
                self.store_word(device, begun + 16, checksum.seal_number(version + 1))

    def numbers(self, offset: int) -> list[int]:
        """Returns the number of a begun save in each mirror, without damaged copies."""
        return _numbers(self.devices.load_word(d, offset) for d in self.geometry.mirrors)

    def last_begun_version(self) -> int:
        """Returns the greatest version that a job has begun to save; -1: none."""
        begin = self.geometry.begun(0)
        pages = [
            self.devices.read(d, begin, layout.BEGUN_BYTES * layout.NUM_CLAIMS).view(np.uint64)
            for d in self.geometry.mirrors
        ]
        words = np.concatenate([page[2 :: layout.BEGUN_BYTES // 8] for page in pages])
        return max(_numbers(words.tolist()), default=0) - 1

    def damaged_numbers(self) -> list[tuple[int, int, int]]:
        """Finds damaged numbers of begun saves.

        Returns a device, an offset, and the right word for each. Without another copy, this word is
        0, which is right if no program uses the memory.
        """
        found = []
        for slot in range(layout.NUM_CLAIMS):
            for offset in range(self.geometry.begun(slot), self.geometry.begun(slot) + 24, 8):
                words = {d: self.devices.load_word(d, offset) for d in self.geometry.mirrors}
                right = checksum.seal_number(max(_numbers(words.values()), default=0))
                found += [
                    (device, offset, right)
                    for device, word in words.items()
                    if checksum.number_of(word) is None
                ]
        return found

    def check_room(self, needed: int) -> None:
        """Checks that the section has as many bytes of each device as a tree needs."""
        has = self.geometry.end - self.geometry.start
        if needed <= has:
            return
        if self.what == "version":
            advice = (
                f"it needs {needed} bytes of each path, and the name was made with {has}; delete"
                " the name, and publish it again"
            )
        else:
            core = self.devices.core
            per_path = core.num_devices // len({*map(core.path, range(core.num_devices))})
            size = (layout.SECTIONS_OFFSET + needed) * per_path
            advice = (
                f"each path needs {size} bytes and has {core.device_bytes * per_path}; name a place"
                f" with size={size} or more"
            )
        raise errors.PoolTooSmallError(f"{self.text} is too small for this tree: {advice}")

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

    def record_on(self, device: int, number: int, writer: int) -> Record | None:
        """Returns the record of a writer in the area of a save on one device, or None."""
        offset = self.geometry.record(number, writer)
        data = self.devices.read_entry(device, offset, layout.RECORD_BYTES)
        record = Record.from_bytes(data) if data else None
        return record if record and record.section == self.entry.identity else None

    def version(self, number: int) -> Records | None:
        """Returns the records of a save if it is valid, else None."""
        records = self.complete(number)
        return None if records is None or differing(records) else records

    def complete(self, number: int) -> Records | None:
        """Returns the records of a save if all processes have written their parts, else None."""
        first = self.record(number, 0)
        if first is None or first.number != number:
            return None
        if not 1 <= first.writers <= layout.MAX_PROCESSES:
            return None
        records = [first]
        for writer in range(1, first.writers):
            record = self.record(number, writer)
            if record is None or _key(record) != _key(first) or record.writer != writer:
                return None
            records.append(record)
        return records

    def all_valid(self) -> list[Records]:
        """Returns the valid versions, the newest first.

        Each version was valid at some time during the call. The first one was the newest at some
        time during the call.
        """
        self.devices.check_paths()
        start = before = self._firsts()
        while True:
            found = [records for r in before if r and (records := self.version(r.number))]
            found.sort(key=lambda records: -records[0].number)
            # The areas are read one after another. Meanwhile a publisher may complete a version in
            # an area that was already read, and erase a version in an area that was not. So this
            # process may find only old versions, or none. What it has found counts if no area has
            # changed, or if the newest of it was completed during this call.
            after = self._firsts()
            if after == before or (found and found[0][0] not in start):
                return found
            before = after

    def _firsts(self) -> list[Record | None]:
        """Returns the records of the first process in all areas."""
        return [self.record(area, 0) for area in range(self.geometry.areas)]

    def last_number(self) -> int:
        """Returns the greatest number that any process has given to a save; 0 if there is none."""
        return max(
            (
                record.number
                for area in range(self.geometry.areas)
                for writer in self.writers_with_records(area)
                for record in self._records(area, writer).values()
                if record is not None
            ),
            default=0,
        )

    def writers_with_records(self, area: int) -> list[int]:
        """Returns the processes that have a record of any save in an area."""
        begin = self.geometry.area(area)
        pages = (
            self.devices.read(device, begin, layout.RECORDS_BYTES).view(np.uint64)
            for device in self.geometry.mirrors
        )
        found = np.any([page[:: layout.RECORD_BYTES // 8] for page in pages], axis=0)
        return np.flatnonzero(found).tolist()

    def _records(self, number: int, writer: int) -> dict[int, Record | None]:
        return {d: self.record_on(d, number, writer) for d in self.geometry.mirrors}


def differing(records: Sequence[Record]) -> list[int]:
    """Returns the columns (`place.Copy`) whose copies differ, by the records of all processes."""
    columns = zip(*(record.replicas for record in records), strict=True)
    return [number for number, column in enumerate(columns) if sum(column) & _WORD]


def _key(record: Record) -> tuple[int, int, int, int, int]:
    return record.number, record.token, record.version, record.writers, record.tree


def _claims(page: np.ndarray) -> list[Claim]:
    entries = page.reshape(layout.NUM_CLAIMS, layout.CLAIM_BYTES)
    found = (Claim.from_bytes(entry.tobytes()) for entry in entries)
    return [claim for slot, claim in enumerate(found) if claim and claim.slot == slot]


def _numbers(words: Iterable[int]) -> list[int]:
    return [number for word in words if (number := checksum.number_of(word)) is not None]
