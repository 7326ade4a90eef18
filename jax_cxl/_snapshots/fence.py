"""Keeps a job that was stopped from writing once another job writes to the same memory.

Before its first save, a job claims the memory: it takes the next incarnation, and writes a claim
into the page of claims, on each device. Its processes read this page before each write. They stop
with an error as soon as it has the claim of a later incarnation. A claim does not overwrite the
claims of the last incarnations, so that a job that wakes up late does not hide its successor.

A process may be stopped between this check and its write. Such a write comes late, and nothing can
prevent it: memory that hosts share has no atomic operations between hosts. So a job does not use
one of the areas, namely the area to which its predecessor may still be writing. This is never the
area of the newest valid snapshot. A late write can damage neither this snapshot nor any later
snapshot.
"""

import dataclasses
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

import numpy as np

from jax_cxl import errors
from jax_cxl._snapshots import checksum, layout, validity

if TYPE_CHECKING:
    from jax_cxl._snapshots.memory import Memory

_NOTHING = (1 << 32) - 1  # No area is retired.
_SPARED = 16  # A new claim does not overwrite this many of the last claims.


class OvertakenError(errors.SnapshotError):
    """Another job has begun to save to the same memory, so this job saves no more."""


@dataclasses.dataclass(frozen=True)
class Claim:
    """An entry in the page of claims.

    Attributes:
      incarnation: a number that grows by one from job to job, from 1 on.
      token: token of the job.
      first: number of its first save. 0: this is the entry that the job writes before it looks what
        its predecessor has written. It writes a second entry afterwards.
      retired: the area that the job does not use.
      slot: position of the entry in the page.
    """

    incarnation: int
    token: int
    first: int
    retired: int
    slot: int

    _FORMAT = struct.Struct("<QQQII")

    def to_bytes(self) -> bytes:
        """Returns the entry. Its first word is the incarnation."""
        data = self._FORMAT.pack(*dataclasses.astuple(self)).ljust(layout.CLAIM_BYTES - 8, b"\0")
        return data + struct.pack("<Q", checksum.of(data))

    @classmethod
    def from_bytes(cls, data: bytes) -> Self | None:
        """Reads an entry. Returns None if the bytes are not an entry, or are damaged."""
        if struct.unpack("<Q", data[-8:])[0] != checksum.of(data[:-8]):
            return None
        claim = cls(*cls._FORMAT.unpack_from(data))
        return claim if claim.incarnation else None

    def next(self, number: int, areas: int) -> int:
        """Returns the number of the save after save `number`."""
        number += 1
        return number + (number % areas == self.retired)

    def write(self, memory: "Memory", devices: Sequence[int]) -> None:
        """Writes the entry on some devices, its first word last."""
        offset = layout.CLAIMS_OFFSET + self.slot * layout.CLAIM_BYTES
        for device in devices:
            memory.store_word(device, offset, 0, fenced=False)
            memory.write(device, offset + 8, self.to_bytes()[8:], fenced=False)
            memory.store_word(device, offset, self.incarnation, fenced=False)

    def check(self, memory: "Memory", device: int) -> None:
        """Checks that no other job has claimed the memory since.

        Raises:
          OvertakenError: another job has claimed it.
        """
        page = memory.read(device, layout.CLAIMS_OFFSET, layout.PAGE_BYTES)
        incarnations = page.view(np.uint64)[:: layout.CLAIM_BYTES // 8]
        if incarnations[self.slot] == self.incarnation == incarnations.max():
            entry = page[self.slot * layout.CLAIM_BYTES :][: layout.CLAIM_BYTES]
            if entry.tobytes() == self.to_bytes():
                return
        found = _claims(page)
        for claim in found:
            if claim.incarnation > self.incarnation or (
                claim.incarnation == self.incarnation and claim.first and claim != self
            ):
                raise OvertakenError(
                    f"another job saves to {memory.where!r}. It began after this job, so this job"
                    " saves no more. The snapshots of the other job are intact. End one of the"
                    " jobs, or give each job a place of its own"
                )
        if self not in found:  # It is damaged, or a job of long ago woke up and overwrote it.
            self.write(memory, [device])


def newest(memory: "Memory") -> int:
    """Returns the last incarnation that has claimed the memory; 0 if none has."""
    return max((claim.incarnation for claim in _all_claims(memory)), default=0)


def take(memory: "Memory", expected: int, token: int, last: int, base: int) -> Claim:
    """Claims the memory for a job. One process does this while no process of the job writes.

    Args:
      memory: the memory of the snapshots.
      expected: the last incarnation when the job looked which snapshots there are.
      token: token of the job.
      last: number of the last save.
      base: number of the snapshot from which the job continues; 0: none.

    Raises:
      OvertakenError: another job has claimed the memory since.
    """
    before = _all_claims(memory)
    intent = Claim(expected + 1, token, 0, _NOTHING, _free_slot(before, token))
    if all(other.incarnation <= expected for other in before):
        intent.write(memory, memory.usable_devices)
        # No other job begins a write from now on. So look only now at what it has written.
        others = [other for other in _all_claims(memory) if other.token != token]
        alone = validity.last_number(memory) <= last
        if alone and all(other.incarnation <= expected for other in others):
            complete = [other for other in others if other.first]
            previous = max(complete, key=lambda other: other.incarnation, default=None)
            first, retired = _choose(memory, previous, last, base)
            slot = _free_slot([*before, intent], token)
            claim = Claim(intent.incarnation, token, first, retired, slot)
            claim.write(memory, memory.usable_devices)
            return claim
    raise OvertakenError(
        f"another job has begun to save to {memory.where!r} since this job looked for snapshots:"
        " restore again, or give each job a place of its own"
    )


def _choose(memory: "Memory", previous: Claim | None, last: int, base: int) -> tuple[int, int]:
    """Returns the first number of a job, and the area that it does not use."""
    areas = memory.geometry.areas
    retired = _NOTHING
    if previous is not None:
        pending = _pending(memory, previous)
        retired = pending % areas
        last = max(last, pending)
    valid = [records[0].number for records in validity.all_valid(memory, last)]
    # The snapshot to continue from must stay. The newest one stays too if there is room.
    spared = [number % areas for number in (base, *valid[:1]) if number in valid]
    for avoided in ({retired, *spared}, {retired, *spared[:1]}):
        for number in range(last + 1, last + 1 + areas):
            if number % areas not in avoided:
                return number, retired
    raise AssertionError("there are at least three areas")


def _pending(memory: "Memory", claim: Claim) -> int:
    """Returns the number of the save that processes of a job may still be writing.

    A job begins a save when its previous save is valid. So it is the save after its last valid
    save.
    """
    numbers = [
        record.number
        for area in range(memory.geometry.areas)
        for writer in validity.writers_with_records(memory, area)
        if (record := memory.newest_record(area, writer)) and record.token == claim.token
    ]
    if not numbers:
        return claim.first
    last = max(numbers)
    return claim.next(last, memory.geometry.areas) if validity.snapshot(memory, last) else last


def _free_slot(claims: Sequence[Claim], token: int) -> int:
    """Returns a slot for a new claim: random, so that two jobs hardly ever take the same one."""
    spared = sorted(claims, key=lambda claim: -claim.incarnation)[:_SPARED]
    free = sorted(set(range(layout.NUM_CLAIMS)) - {claim.slot for claim in spared})
    return free[token % len(free)]


def _all_claims(memory: "Memory") -> list[Claim]:
    pages = (
        memory.read(device, layout.CLAIMS_OFFSET, layout.PAGE_BYTES)
        for device in memory.usable_devices
    )
    return list({claim: None for page in pages for claim in _claims(page)})


def _claims(page: np.ndarray) -> list[Claim]:
    entries = page.reshape(layout.NUM_CLAIMS, layout.CLAIM_BYTES)
    found = (Claim.from_bytes(entry.tobytes()) for entry in entries)
    return [claim for slot, claim in enumerate(found) if claim and claim.slot == slot]
