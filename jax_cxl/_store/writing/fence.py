"""Keeps a job that was stopped from writing once another job writes under the same name.

Before its first save, a job claims the section of the name: it takes the next incarnation (a number
that grows from job to job), and writes a claim into the page of claims, on each device. Its
processes read this page before each write. They stop with an error as soon as the page contains the
claim of a later incarnation. A claim does not overwrite the claims of the last incarnations. So the
late claim of a job that was stopped does not hide the claim of the job's successor.

A process may be stopped between this check and its write. Such a write comes late, and nothing can
prevent it: memory that hosts share has no atomic operations between hosts. So a job never uses the
area to which its predecessor may still be writing. The job knows this area, because each job
records that it begins a save before it changes anything in the area of this save. Besides, no save
uses the area of the newest valid version. So a late write can damage neither this version nor any
later version.
"""

import contextlib
import dataclasses
import secrets
import struct
from collections.abc import Sequence
from typing import ClassVar, Self

import numpy as np

from jax_cxl import errors
from jax_cxl._store.memory import begun, catalog, checksum, layout
from jax_cxl._store.memory.record import Record
from jax_cxl._store.memory.section import Section
from jax_cxl._store.reading import validity

_NOTHING = (1 << 32) - 1  # The job uses all areas.
_SPARED = 16  # A new claim does not overwrite this many of the last claims.


class OvertakenError(errors.StoreError):
    """Another job has begun to save under the same name, so this job can no longer save."""


class DeletedError(OvertakenError):
    """The name was deleted, so this job can no longer save."""


class OwnedError(errors.StoreError):
    """Another living job saves under the name."""


@dataclasses.dataclass(frozen=True)
class Claim:
    """An entry in the page of claims.

    Attributes:
      incarnation: a number that grows by one from job to job, from 1 on.
      token: token of the job.
      first: number of the job's first save. It is 0 in the entry that the job writes before it
        looks at what its predecessor has written. Afterwards the job writes a second entry.
      retired: the area that the job does not use, or `_NOTHING`.
      slot: position of the entry in the page.
      session: slot of the session of the process that made the claim.
      identity: identity of this session.
    """

    incarnation: int
    token: int
    first: int
    retired: int
    slot: int
    session: int
    identity: int

    NUM_FIELDS: ClassVar[int] = 7
    _FORMAT = struct.Struct("<QQQIIQQ")

    def numbers(self) -> tuple[int, ...]:
        """Returns the fields."""
        return dataclasses.astuple(self)

    def to_bytes(self) -> bytes:
        """Returns the entry. Its first word is the incarnation."""
        return checksum.seal(self._FORMAT.pack(*self.numbers()), layout.CLAIM_BYTES)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self | None:
        """Reads an entry. Returns None if the bytes are not an entry, or are damaged."""
        if not checksum.is_sealed(data):
            return None
        claim = cls(*cls._FORMAT.unpack_from(data))
        return claim if claim.incarnation else None

    def write(self, section: Section, devices: Sequence[int]) -> None:
        """Writes the entry on some devices, its first word last."""
        offset = section.geometry.claims + self.slot * layout.CLAIM_BYTES
        for device in devices:
            section.devices.write_entry(device, offset, self.to_bytes())

    @property
    def _released(self) -> Self:
        """The entry as `release` leaves it: without a session, so that another job may follow."""
        return dataclasses.replace(self, session=0, identity=0)

    def release(self, section: Section) -> None:
        """Announces that the job has stopped saving, unless another job has claimed the section."""
        offset = section.geometry.claims + self.slot * layout.CLAIM_BYTES
        with contextlib.suppress(OvertakenError):
            for device in section.devices.usable:
                self.check(section, device)
                section.devices.write_entry(device, offset, self._released.to_bytes())
        section.claim = None

    def begin(self, section: Section, number: int, version: int) -> None:
        """Records that the job may begin a save, before anything in that save's area changes."""
        begun = section.geometry.begun(self.slot)
        for device in section.geometry.mirrors:
            section.store_word(device, begun, checksum.seal_number(number))
            if version + 1 < checksum.NUMBERS:
                section.store_word(device, begun + 16, checksum.seal_number(version + 1))

    def choose(self, section: Section, number: int) -> None:
        """Tells the other processes of the job which save they begin."""
        for device in section.geometry.mirrors:
            section.store_word(
                device, section.geometry.begun(self.slot) + 8, checksum.seal_number(number)
            )

    def chosen(self, section: Section) -> int:
        """Returns the number of the last save that was chosen with `choose`, 0 if there is none."""
        return max(begun.numbers(section, section.geometry.begun(self.slot) + 8), default=0)

    def check(self, section: Section, device: int) -> None:
        """Checks that no other job has claimed the section since this job did.

        Raises:
          OvertakenError: another job has claimed it, or the name was deleted.
        """
        if section.devices.is_inherited:
            raise OvertakenError(
                f"the parent of this process saves to {section.text}: let the parent save, or give"
                " this process a place of its own"
            )
        if not catalog.has(section.devices, section.entry):
            raise _deleted(section)
        page = section.devices.read(device, section.geometry.claims, layout.PAGE_BYTES)
        incarnations = page.view(np.uint64)[:: layout.CLAIM_BYTES // 8]
        if incarnations[self.slot] == self.incarnation == incarnations.max():
            entry = page[self.slot * layout.CLAIM_BYTES :][: layout.CLAIM_BYTES]
            if entry.tobytes() == self.to_bytes():
                return
        found = _claims(page)
        own = self, self._released  # The process that made the claim may have released it.
        for claim in found:
            if claim.incarnation > self.incarnation or (
                claim.incarnation == self.incarnation and claim.first and claim not in own
            ):
                raise OvertakenError(
                    f"another job saves to {section.text}. It began after this job, so this job"
                    " saves no more. What the other job saves is intact. End one of the"
                    " jobs, or give each job a place of its own"
                )
        # If the claim is gone, it was damaged, or a much older job woke up and overwrote it.
        # Write it again.
        if not set(own) & set(found):
            self.write(section, [device])


def newest(section: Section) -> int:
    """Returns the last incarnation that has claimed the section; 0 if none has."""
    return max((claim.incarnation for claim in _all_claims(section)), default=0)


def owner(section: Section) -> str | None:
    """Returns which process made the last claim, in words.

    Returns None if that process has ended or has released its claim, or if it is this process.
    """
    if not catalog.has(section.devices, section.entry):
        return None  # The memory may belong to another name now.
    # A job writes two claims. The complete one has `first` > 0.
    claims = _all_claims(section)
    last = max(claims, key=lambda claim: (claim.incarnation, claim.first), default=None)
    if last is None or last.identity in (0, section.devices.sessions.enter()[1]):
        return None
    who: str | None = section.devices.sessions.living(last.session, last.identity)
    return who


def take(section: Section, expected: int, token: int, last: int, base: int) -> Claim:
    """Claims the section for a job. One process does this while no process of the job writes.

    Args:
      section: the section.
      expected: the last incarnation when the job looked for versions.
      token: token of the job.
      last: number of the last save.
      base: number of the version from which the job continues; 0: none.

    Raises:
      OvertakenError: another job has claimed the section since, or the name was deleted.
    """
    before = _all_claims(section)
    session, identity = section.devices.sessions.enter()
    slot = _free_slot(before, token)
    intent = Claim(expected + 1, token, 0, _NOTHING, slot, session, identity)
    if not catalog.has(section.devices, section.entry):
        raise _deleted(section)
    if all(other.incarnation <= expected for other in before):
        intent.write(section, section.devices.usable)
        if not catalog.stays(section.devices, section.entry):
            raise _deleted(section)
        # From now on no other job begins a write, because each looks for later claims first. So
        # what the other jobs have written is final: look at it now, not earlier.
        others = [other for other in _all_claims(section) if other.token != token]
        alone = validity.last_number(section) <= last
        if alone and all(other.incarnation <= expected for other in others):
            complete = [other for other in others if other.first]
            previous = max(complete, key=lambda other: other.incarnation, default=None)
            last_begun = _begun(section, previous)
            # If the previous job has begun nothing, leave out the same area as that job, because
            # the job before it may still be writing there.
            retired = last_begun % section.geometry.areas if last_begun else _retired_by(previous)
            first = _first(section, retired, max(last, last_begun), base)
            slot = _free_slot([*before, intent], token)
            claim = dataclasses.replace(intent, first=first, retired=retired, slot=slot)
            for device in section.devices.usable:
                section.devices.write(device, section.geometry.begun(slot), bytes(16))
            claim.write(section, section.devices.usable)
            return claim
    raise OvertakenError(
        f"another job has begun to save to {section.text} since this job looked for what is there:"
        " restore again, or give each job a place of its own"
    )


def take_alone(section: Section) -> None:
    """Claims the section of a table, which has one area, if no other living process has a claim.

    Raises:
      OwnedError: another living process has a claim.
      OvertakenError: the table was deleted.
    """
    with catalog.locked(section.devices):
        if who := owner(section):
            raise OwnedError(
                f"{who} already writes to {section.text}. Only one job at a time can: end that"
                " job first"
            )
        claims = _all_claims(section)
        session, identity = section.devices.sessions.enter()
        incarnation = max((claim.incarnation for claim in claims), default=0) + 1
        token = secrets.randbits(63) | 1
        slot = _free_slot(claims, token)
        claim = Claim(incarnation, token, 1, _NOTHING, slot, session, identity)
        # Nobody deletes the section while this process has the lock.
        if not catalog.has(section.devices, section.entry):
            raise _deleted(section)
        claim.write(section, section.devices.usable)
    section.claim = claim


def delete(section: Section) -> None:
    """Deletes a name that no other living process publishes or reads.

    Raises:
      StoreError: another living process publishes or reads it.
    """

    def refused() -> str | None:
        who = owner(section)
        return f"{who} publishes it. Close its store first" if who else None

    catalog.delete(section.devices, section.entry, refused)


def _deleted(section: Section) -> DeletedError:
    return DeletedError(f"{section.text} was deleted, so this job does not save to it")


def next_number(
    section: Section, last: int, newest_valid: int, base: int, version: int
) -> tuple[Record | None, int] | None:
    """Begins the next save: chooses its number, and erases the version that is in its area.

    Args:
      section: the section, which this job has claimed.
      last: number of the last save.
      newest_valid: number of the newest valid version; 0: none.
      base: number of a version that has to stay; 0: none.
      version: the version that is saved.

    Returns:
      The record that the first process had in the area, and the number; None if processes are
      reading the versions in all areas that may be used.
    """
    claim = section.claim
    assert claim is not None
    areas = section.geometry.areas
    spared = {number % areas for number in (newest_valid, base) if number}
    if len(spared | {claim.retired}) >= areas:
        spared = {base % areas}
    for number in range(max(last + 1, claim.first), max(last + 1, claim.first) + areas):
        area = number % areas
        if area == claim.retired or area in spared or _is_read(section, number):
            continue
        old = section.record(number, 0)
        claim.begin(section, number, version)
        for device in section.geometry.mirrors:
            section.store_word(device, section.geometry.record(number, 0), 0)
        # From now on no process begins to read the old version. But one may have begun after the
        # first check, so check again.
        if not _is_read(section, number):
            claim.choose(section, number)
            return old, number
    return None


def _is_read(section: Section, number: int) -> bool:
    return bool(catalog.holders(section.devices, section.entry, number))


def _begun(section: Section, previous: Claim | None) -> int:
    """Returns the number of the last save that the job of a claim has begun; 0: none.

    The job may still be writing to the area of this save.
    """
    if previous is None:
        return 0
    offset = section.geometry.begun(previous.slot)
    # A process stores the number on all mirrors before it changes anything else. So any copy will
    # do.
    if not (numbers := begun.numbers(section, offset)):
        raise errors.StoreError(
            f"{section.text} is damaged: the number of the save that the last job has begun (offset"
            f" {offset:#x}). End all programs that use this memory, then repair it by"
            " `python -m jax_cxl store repair`"
        )
    return max(numbers)


def _retired_by(previous: Claim | None) -> int:
    return _NOTHING if previous is None else previous.retired


def _first(section: Section, retired: int, last: int, base: int) -> int:
    """Returns the first number that a job may use."""
    areas = section.geometry.areas
    valid = [records[0].number for records in validity.all_valid(section)]
    # The version to continue from must stay. The newest one stays too if there is room.
    spared = [number % areas for number in (base, *valid[:1]) if number in valid]
    for avoided in ({retired, *spared}, {retired, *spared[:1]}):
        for number in range(last + 1, last + 1 + areas):
            if number % areas not in avoided:
                return number
    raise AssertionError(
        f"none of {areas} areas is free, but there are at least three; please report this to"
        " jax_cxl"
    )


def _free_slot(claims: Sequence[Claim], token: int) -> int:
    """Returns a random slot for a new claim, so that two jobs hardly ever take the same slot."""
    spared = sorted(claims, key=lambda claim: -claim.incarnation)[:_SPARED]
    free = sorted(set(range(layout.NUM_CLAIMS)) - {claim.slot for claim in spared})
    return free[token % len(free)]


def _all_claims(section: Section) -> list[Claim]:
    pages = (
        section.devices.read(device, section.geometry.claims, layout.PAGE_BYTES)
        for device in section.devices.usable
    )
    return list({claim: None for page in pages for claim in _claims(page)})


def _claims(page: np.ndarray) -> list[Claim]:
    entries = page.reshape(layout.NUM_CLAIMS, layout.CLAIM_BYTES)
    found = (Claim.from_bytes(entry.tobytes()) for entry in entries)
    return [claim for slot, claim in enumerate(found) if claim and claim.slot == slot]
