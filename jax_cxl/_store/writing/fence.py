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
import time
from collections.abc import Sequence

from jax_cxl import errors
from jax_cxl._job import configuration
from jax_cxl._store.memory import catalog, layout
from jax_cxl._store.memory.layout import Claim, Record
from jax_cxl._store.memory.section import OvertakenError, Section

_POLL_SECONDS = 0.002
_SPARED = 16  # A new claim does not overwrite this many of the last claims.


class OwnedError(errors.StoreError):
    """Another living job saves under the name."""


def release(section: Section, claim: Claim) -> None:
    """Announces that the job has stopped saving, unless another job has claimed the section."""
    offset = section.geometry.claims + claim.slot * layout.CLAIM_BYTES
    with contextlib.suppress(OvertakenError):
        for device in section.devices.usable:
            section.check_claim(claim, device)
            section.devices.write_entry(device, offset, claim.released.to_bytes())
    section.claim = None


def newest(section: Section) -> int:
    """Returns the last incarnation that has claimed the section; 0 if none has."""
    return max((claim.incarnation for claim in section.claims()), default=0)


def owner(section: Section) -> str | None:
    """Returns which process made the last claim, in words.

    Returns None if that process has ended or has released its claim, or if it is this process.
    """
    if not catalog.has(section.devices, section.entry):
        return None  # The memory may belong to another name now.
    # A job writes two claims. The complete one has `first` > 0.
    claims = section.claims()
    last = max(claims, key=lambda claim: (claim.incarnation, claim.first), default=None)
    if last is None or last.identity in (0, section.devices.sessions.enter()[1]):
        return None
    who: str | None = section.devices.sessions.living(last.session, last.identity)
    return who


def take(section: Section, expected: int, token: int, last: int) -> Claim:
    """Claims the section for a job. One process does this while no process of the job writes.

    `expected` is the last incarnation, and `last` the last save, when the job looked for versions.
    Raises OvertakenError if another job has claimed the section since.
    """
    before = section.claims()
    session, identity = section.devices.sessions.enter()
    slot = _free_slot(before, token)
    intent = Claim(expected + 1, token, 0, layout.NOTHING, slot, session, identity)
    section.check_exists()
    if all(other.incarnation <= expected for other in before):
        section.write_claim(intent, section.devices.usable)
        if not catalog.stays(section.devices, section.entry):
            raise section.deleted()
        # From now on no other job begins a write, because each looks for later claims first. So
        # what the other jobs have written is final: look at it now, not earlier.
        others = [other for other in section.claims() if other.token != token]
        alone = section.last_number() <= last
        if alone and all(other.incarnation <= expected for other in others):
            complete = [other for other in others if other.first]
            previous = max(complete, key=lambda other: other.incarnation, default=None)
            last_begun = _begun(section, previous)
            # If the previous job has begun nothing, leave out the same area as that job, because
            # the job before it may still be writing there.
            retired = layout.NOTHING if previous is None else previous.retired
            if last_begun:
                retired = last_begun % section.geometry.areas
            first = max(last, last_begun) + 1
            slot = _free_slot([*before, intent], token)
            claim = dataclasses.replace(intent, first=first, retired=retired, slot=slot)
            for device in section.devices.usable:
                section.devices.write(device, section.geometry.begun(slot), bytes(8))
            section.write_claim(claim, section.devices.usable)
            return claim
    raise OvertakenError(
        f"another job has begun to save to {section.text} since this job looked for what is there:"
        " restore again, or give each job a place of its own"
    )


def take_alone(section: Section) -> None:
    """Claims the section of a table, which has one area, if no other living process has a claim."""
    with catalog.locked(section.devices):
        if who := owner(section):
            raise OwnedError(
                f"{who} already writes to {section.text}. Only one job at a time can: end that"
                " job first"
            )
        claims = section.claims()
        session, identity = section.devices.sessions.enter()
        incarnation = max((claim.incarnation for claim in claims), default=0) + 1
        token = layout.random_word()
        slot = _free_slot(claims, token)
        claim = Claim(incarnation, token, 1, layout.NOTHING, slot, session, identity)
        # Nobody deletes the section while this process has the lock.
        section.check_exists()
        section.write_claim(claim, section.devices.usable)
    section.claim = claim


def delete(section: Section) -> None:
    """Deletes a name that no other living process publishes or reads."""

    def refused() -> str | None:
        who = owner(section)
        return f"{who} publishes it. Close its store first" if who else None

    catalog.delete(section.devices, section.entry, refused)


def next_number(
    section: Section, last: int, newest_valid: int, base: int, version: int
) -> tuple[Record | None, int]:
    """Begins the next save: chooses its number, and erases the version that is in its area.

    The versions `newest_valid` and `base` stay. Waits while processes read the versions in all
    other areas. Returns the first process's record of the erased version, and the number.
    """
    claim = section.claim
    assert claim is not None
    areas = section.geometry.areas
    spared = {number % areas for number in (newest_valid, base) if number}
    if len(spared | {claim.retired}) >= areas:
        spared = {base % areas}
    first = max(last + 1, claim.first)
    free = [n for n in range(first, first + areas) if n % areas not in {claim.retired, *spared}]
    end = None
    while True:
        for number in free:
            if _is_read(section, number):
                continue
            old = section.record(number, 0)
            section.begin(number, version)
            for device in section.geometry.mirrors:
                section.store_word(device, section.geometry.record(number, 0), 0)
            # From now on no process begins to read the old version. But one may have begun after
            # the first check, so check again.
            if not _is_read(section, number):
                return old, number
        end = end or time.monotonic() + configuration.from_environment().timeout
        if time.monotonic() > end:
            readers = [
                who
                for area in range(areas)
                for who in catalog.holders(section.devices, section.entry, area)
            ]
            raise errors.StoreError(
                f"all memory of {section.text} is being read, by {', '.join(readers)}: close"
                " views that are no longer needed, or make the name with a larger keep"
            )
        time.sleep(_POLL_SECONDS)


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
    if not (numbers := section.numbers(offset)):
        raise errors.StoreError(
            f"{section.text} is damaged: the number of the save that the last job has begun (offset"
            f" {offset:#x}). End all programs that use this memory, then repair it by"
            " `python -m jax_cxl store repair`"
        )
    return max(numbers)


def _free_slot(claims: Sequence[Claim], token: int) -> int:
    """Returns a random slot for a new claim, so that two jobs hardly ever take the same slot."""
    spared = sorted(claims, key=lambda claim: -claim.incarnation)[:_SPARED]
    free = sorted(set(range(layout.NUM_CLAIMS)) - {claim.slot for claim in spared})
    return free[token % len(free)]
