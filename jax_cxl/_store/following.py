"""Reads the versions of a name while another job publishes them."""

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self, TypeVar

from jax_cxl import _core, _text, errors
from jax_cxl._job import configuration
from jax_cxl._store import agreement, arguments, frameworks
from jax_cxl._store.memory import catalog
from jax_cxl._store.memory.devices import Devices
from jax_cxl._store.memory.layout import Record, Records
from jax_cxl._store.memory.section import Section
from jax_cxl._store.reading import rebuilding, targets
from jax_cxl._store.reading.restoring import MisfitError, Reader
from jax_cxl._store.reading.version import NOTHING, Begin, Pending, Reusable, Source, Version
from jax_cxl._store.trees import names

Result = TypeVar("Result")

_POLL_SECONDS = 0.001


@dataclasses.dataclass(frozen=True)
class Wanted:
    """What to read.

    Attributes:
      into: the result of an earlier read, whose leaves this read may use again; None for no such
        result.
      together: whether all processes of the job read the same version.
      arrays: the program's arrays to read into, by the paths of their leaves; None to make arrays.
    """

    tree: rebuilding.Wanted | None
    version: int | None
    newer_than: int | None
    seconds: float
    into: Version | None
    together: bool
    arrays: Mapping[str, targets.Target] | None = None
    non_blocking: bool = False

    @classmethod
    def of(
        cls,
        like: Any,
        version: int | None,
        newer_than: int | None,
        timeout: float | None,
        into: Version | Mapping[str, Any] | None,
        non_blocking: bool = False,
    ) -> Self:
        """Returns what to read, from the arguments of `Store.read`, which this function checks."""
        if version is not None:
            version = arguments.whole("version", version)
            if newer_than is not None:
                raise ValueError(
                    "version and newer_than cannot be given together: leave one of them out"
                )
        if newer_than is not None:
            newer_than = arguments.whole("newer_than", newer_than)
        arrays: Mapping[str, targets.Target] | None = None
        if isinstance(into, Mapping):
            arrays = targets.of(into)
            into = None
        elif isinstance(into, Version) and into._reusable.filled is not None:
            arrays = into._reusable.filled.targets
        if like is not None and arrays is not None:
            raise ValueError("like and arrays in into cannot be given together: leave one out")
        if into is not None and not isinstance(into, Version):
            raise TypeError(
                f"into={type(into).__name__} must be what store.read has returned, not its tree:"
                " last = store.read(name), and then store.read(name, into=last)"
            )
        if into is not None:
            if into._pending is not None:
                into._pending.check(again=False)
            into._reusable.check()
        if non_blocking and arrays is None:
            raise ValueError("non_blocking=True needs tensors to read into: pass them as into")
        tree = None if like is None else rebuilding.wanted(like)
        together = tree is not None and any(map(_is_over_processes, tree.likes))
        seconds = seconds_of(timeout)
        return cls(tree, version, newer_than, seconds, into, together, arrays, non_blocking)


def seconds_of(timeout: float | None) -> float:
    """Returns `timeout` in seconds, by default `JAX_CXL_TIMEOUT`, after checking it."""
    given = arguments.timeout(timeout)
    return configuration.from_environment().timeout if given is None else given


def read(open_memory: Callable[[], Devices], name: str, wanted: Wanted) -> Version:
    """Reads a version from the memory that `open_memory` returns; see `Store.read`."""
    writers = agreement.processes() if wanted.together else ()
    with contextlib.ExitStack() as stack:
        begin = None
        if wanted.into is not None:
            likes = wanted.tree.likes if wanted.tree else ()
            taken = wanted.into._reusable.taken(wanted.into.tree, likes)
            begin = stack.enter_context(taken)
        waits = 0 if wanted.newer_than is None else wanted.seconds
        stack.enter_context(agreement.topic(f"a read of {name!r}", waits))
        devices = _on_all(writers, open_memory)
        found = read_version(
            writers,
            lambda: candidates(devices, name, wanted),
            lambda: Section.find(devices, name),
            lambda section, records: build(section, records, wanted, begin),
            wanted.version is not None,
        )
        if found is None:
            raise errors.StoreError(
                f"{name!r} of {devices.where!r} has lost its last valid version: publish it again"
            )
        return found[1]


def read_version(
    writers: Sequence[int],
    look: Callable[[], tuple[Section, list[Records]]],
    find: Callable[[], Section | None],
    read: Callable[[Section, Records], Result],
    only: bool,
) -> tuple[int, Result] | None:
    """Reads a version on all processes, or raises on all.

    Args:
      writers: indices of the processes that read, and that all call this function; () if this
        process reads alone.
      look: returns the section of the name, and the versions that may be read, in the order of
        preference. Only the first process calls it.
      find: returns the section of the name, on the other processes.
      read: takes the section and the records of a version that has been leased, and returns what
        this process needs from it.
      only: whether no other version will do. If not, the first process reports a damaged version,
        and all read the next one.

    Returns:
      The number of the version, and what `read` has returned; None if there is no version.

    Raises:
      StoreError: all versions are damaged on one of the processes, or the newest undamaged one does
        not fit.
      CxlError: a process has another error.
    """
    first = len(writers) < 2 or writers[0] == agreement.own()
    tried: set[Record] = set()
    problem: Exception | None = None

    def choose(leases: contextlib.ExitStack) -> list[tuple[Section, Records]]:
        """Leases the version to read, and returns it; returns nothing if there is none."""
        while True:
            # Newer versions may have replaced those found before, so look again each time.
            section, found = look()
            left = [records for records in found if records[0] not in tried]
            if not left:
                return []
            if leases.enter_context(leased(section, left[0])):
                return [(section, left[0])]

    def read_chosen(number: int, chosen: list[tuple[Section, Records]]) -> Result:
        """Reads the version that the first process has chosen; adds it to `chosen` elsewhere."""
        if not chosen:
            section = find()
            records = section.version(number) if section else None
            if section is None or records is None:
                where = section.text if section else "the store"
                raise MisfitError(agreement.other_memory(where, writers[0], agreement.own()))
            chosen.append((section, records))
        return read(*chosen[0])

    while True:
        # The lease of the first process keeps the version until all have read it.
        with contextlib.ExitStack() as leases:
            chosen = _on_all(writers, functools.partial(choose, leases) if first else list)
            ((number,), *_) = _gather(writers, [chosen[0][1][0].number if chosen else 0])
            if not number:
                break
            result, error = _try(writers, functools.partial(read_chosen, number, chosen), chosen)
            if error is None:
                return number, result
            if _kind(error) != _DAMAGED:
                try:
                    raise error
                finally:
                    del error  # As in `_on_all`.
            there = [is_there(section, records) for section, records in chosen]
            if not _gather(writers, [any(there)])[0][0]:
                continue  # The first process stood still for so long that its lease has ended.
            problem = error
            for section, records in chosen:
                tried.add(records[0])
                if not only:
                    _text.warn(
                        "%s is not used: %s", section.text_of(records[0].version), str(error)
                    )
    if problem is not None:
        try:
            raise problem
        finally:
            problem = error = None  # As in `_on_all`.
    return None


def wait(
    devices: Devices, name: str, newer_than: int, seconds: float
) -> tuple[Section, list[Records]]:
    """Waits for newer versions. Returns those that are valid, the newest first."""
    end = time.monotonic() + seconds
    while True:
        section, found = Section.find_versions(devices, name) or (None, [])
        newer = [records for records in found if records[0].version > newer_than]
        if section is not None and newer:
            return section, newer
        if time.monotonic() > end:
            text = section.text if section else f"{name!r} of {devices.where!r}"
            newest = f"its newest version is {found[0][0].version}" if found else "it has none"
            from jax_cxl._store.writing import fence

            who = fence.owner(section) if section else None
            raise errors.StoreTimeoutError(
                f"{text} got no version newer than {newer_than} within {seconds:g} s: {newest}, and"
                f" {who or 'no living process'} publishes it."
                " Wait longer (timeout=), or look at the job that should publish it"
            )
        time.sleep(_POLL_SECONDS)


@contextmanager
def leased(section: Section, records: Records) -> Iterator[_core.Lease | None]:
    """Keeps a version while it is read; yields None if it is no longer there."""
    sessions = section.devices.sessions
    lease = sessions.add_lease(catalog.lease_of(section.entry, records[0].number))
    try:
        if there := is_there(section, records):
            yield lease
    finally:
        sessions.remove_lease(lease)
    if not there:
        yield None  # The caller may go on to another version.


def is_there(section: Section, records: Records) -> bool:
    """Returns whether a version that has been leased can be read."""
    now = section.version(records[0].number)
    return now == records and catalog.stays(section.devices, section.entry)


def absent(devices: Devices, name: str) -> errors.StoreError:
    """Returns the error for a name that a store does not have."""
    return errors.StoreError(f"{devices.where!r} has no {name!r}; store.list() has all names")


def candidates(devices: Devices, name: str, wanted: Wanted) -> tuple[Section, list[Records]]:
    """Returns the versions that may be read, in the order of preference."""
    if wanted.newer_than is not None:
        return wait(devices, name, wanted.newer_than, wanted.seconds)
    known = Section.find_versions(devices, name)
    if known is None:
        raise absent(devices, name)
    section, found = known
    if wanted.version is not None:
        versions = [records[0].version for records in found]
        found = [records for records in found if records[0].version == wanted.version]
        if not found:
            raise errors.StoreError(
                f"{section.text} has no version {wanted.version}, only {versions}"
            )
    if not found:
        raise errors.StoreError(f"{section.text} has no version yet: wait for one with store.wait")
    return section, found


def build(
    section: Section, records: Records, wanted: Wanted, begin: Begin | None = None
) -> Version:
    """Reads what is wanted from a version."""
    known, previous = begin() if begin else (None, NOTHING)
    reader = Reader(section, records, known)
    if wanted.arrays is not None:
        return _fill(reader, wanted.arrays, wanted)
    tree: Any
    if wanted.tree is None:
        # Arrays that each saving process had by itself must have been the same in all.
        source = Source(reader, (), 0, previous)
        made = {
            name: source.whole(leaf) if leaf.dtype else leaf.value
            for name, leaf in reader.leaves.items()
        }
        tree = names.by_path(made)
    else:
        # If only NumPy arrays are wanted, do not ask for the process index: JAX would make its
        # devices.
        with_jax = any(hasattr(x, "sharding") for x in wanted.tree.likes)
        own = agreement.own() if with_jax or wanted.together else 0
        writers = agreement.processes() if wanted.together else [own]
        source = Source(reader, writers, own, previous)
        found = rebuilding.rebuild(wanted.tree.names, wanted.tree.likes, source)
        if with_jax:
            frameworks.jax().block_until_ready(found)
        made = dict(zip(wanted.tree.names, found, strict=True))
        tree = wanted.tree.structure.unflatten(found)
    return Version(records[0].version, tree, Reusable(reader.known(), made))


def _fill(reader: Reader, arrays: Mapping[str, targets.Target], wanted: Wanted) -> Version:
    """Reads into arrays and tensors of the program."""
    section, records = reader.stripes[0].section, reader.records
    before = wanted.into._reusable.filled if wanted.into is not None else None
    filled, copies = targets.start(arrays, reader, before)
    number, tree = records[0].version, {path: target.given for path, target in arrays.items()}
    reusable = Reusable(reader.known(), {}, filled)
    if not wanted.non_blocking:
        copies.finish()
        return Version(number, tree, reusable)
    lease = contextlib.ExitStack()
    lease.enter_context(leased(section, records))
    return Version(number, tree, reusable, Pending(copies, lease, reusable))


_DAMAGED, _MISFIT, _OTHER = 1, 2, 3  # kinds of errors; the greatest is the worst


def _kind(error: Exception | None) -> int:
    if error is None or not isinstance(error, errors.StoreError):
        return _OTHER if error else 0
    return _MISFIT if isinstance(error, MisfitError) else _DAMAGED


def _try(
    writers: Sequence[int],
    step: Callable[[], Any],
    chosen: Sequence[tuple[Section, Records]] = (),
) -> tuple[Any, Exception | None]:
    """Returns the result of `step()`, and on all processes an error of the worst kind of any."""
    result: Any = None
    problem: Exception | None = None
    try:
        result = step()
    except Exception as error:
        problem = error
    if len(writers) > 1:
        told = agreement.gather_bytes(
            bytes([_kind(problem)]) + agreement.in_words(problem).encode()
        )
        worst = max(told, key=lambda each: each[0])
        if worst[0] > _kind(problem):
            make = (errors.StoreError, MisfitError, errors.CxlError)[worst[0] - 1]
            what = "".join(f" {section.text_of(of[0].version)}" for section, of in chosen)
            text = worst[1:].decode(errors="replace")
            if text.startswith(errors.StoreTimeoutError.__name__):
                make = errors.StoreTimeoutError
            problem = make(f"process {writers[told.index(worst)]} could not read{what}: {text}")
    try:
        return result, problem
    finally:
        del problem  # As in `_on_all`.


def _on_all(writers: Sequence[int], step: Callable[[], Any]) -> Any:
    """Returns the result of `step()`. If it fails on one process, all processes raise an error."""
    result, problem = _try(writers, step)
    if problem is not None:
        try:
            raise problem
        finally:
            del problem  # An error whose frames refer to it would keep the memory mapped.
    return result


def _gather(writers: Sequence[int], values: Sequence[int]) -> list[tuple[int, ...]]:
    return agreement.gather(values) if len(writers) > 1 else [tuple(values)]


def _is_over_processes(like: Any) -> bool:
    sharding = getattr(like, "sharding", None)
    return sharding is not None and agreement.is_connected() and not sharding.is_fully_addressable
