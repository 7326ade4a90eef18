"""The processes of a job restore a version together. Their later saves continue from it."""

import contextlib
import logging
from collections.abc import Callable
from typing import TypeVar

from jax_cxl import errors
from jax_cxl._store import agreement, following
from jax_cxl._store.memory import catalog
from jax_cxl._store.memory.record import Record
from jax_cxl._store.memory.section import Section
from jax_cxl._store.reading import rebuilding, validity
from jax_cxl._store.reading.restoring import Reader
from jax_cxl._store.reading.validity import Records
from jax_cxl._store.writing.problems import in_words
from jax_cxl._store.writing.publisher import Publisher

Result = TypeVar("Result")


def restore(
    publisher: Publisher, read: Callable[[Reader], Result], version: int | None = None
) -> tuple[int, Result] | None:
    """Reads a version on all processes, or raises on all. All processes call it.

    The version is not overwritten until the next two versions are valid.

    Args:
      publisher: the publisher of the name, after `agree`.
      read: takes a reader of the version, and returns what this process needs from it.
      version: the version; None for the newest one that is undamaged.

    Returns:
      The version and the result; None if there is no such version.

    Raises:
      StoreError: the version is damaged, or does not fit, on one of the processes. If `version` is
        None: all versions are damaged, or the newest undamaged one does not fit.
      CxlError: a process has another error.
    """
    writers = agreement.processes()
    first = writers[0] == agreement.own()
    tried: set[Record] = set()
    problem: Exception | None = None
    while True:
        with contextlib.ExitStack() as leases:

            def choose(leases: contextlib.ExitStack = leases) -> int:
                return _choose(publisher.section, version, tried, leases) if first else 0

            # The lease of the first process keeps the version until all have read it.
            ((number,), *_) = agreement.gather([following.on_all(writers, choose)])
            if not number:
                break
            records = validity.version(publisher.section, number)
            try:
                result = _read(publisher.section, records, read)
            except rebuilding.MisfitError:
                raise
            except errors.StoreError as error:
                there = records is not None and following.is_there(publisher.section, records)
                if not agreement.gather([there])[0][0]:
                    continue  # The first process stood still for so long that its lease has ended.
                problem = error
                if records is not None:
                    tried.add(records[0])
                if records is not None and version is None:
                    logging.getLogger("jax_cxl").warning(
                        "%s is not used: %s", publisher.section.text_of(records[0].version), error
                    )
                continue
            assert records is not None
            publisher.continue_from(number)
            return records[0].version, result
    if problem is not None:
        raise problem
    return None


def _choose(
    section: Section, version: int | None, tried: set[Record], leases: contextlib.ExitStack
) -> int:
    """Leases the version to read, and returns its number; 0 if there is none."""
    while True:
        left = [
            records
            for records in validity.all_valid(section)
            if records[0] not in tried and version in (None, records[0].version)
        ]
        if not catalog.is_current(section.devices, section.entry):
            raise errors.StoreError(f"{section.text} was deleted: open it again")
        if not left:
            return 0
        if leases.enter_context(following.leased(section, left[0])):
            return left[0][0].number


def _read(section: Section, records: Records | None, read: Callable[[Reader], Result]) -> Result:
    """Reads a version on all processes, or raises on all."""
    problem: Exception | None = None
    result: list[Result] = []
    writers = agreement.processes()
    try:
        if records is None:
            raise errors.StoreError(
                f"{section.text} is not the same memory on processes {writers[0]} and"
                f" {agreement.own()}: name the same memory on all processes"
            )
        result.append(read(Reader(section, records)))
    except Exception as error:
        problem = error
    # After a StoreError because of damage, `restore` tries an older version. After any other error
    # it does not.
    kind = 0 if problem is None else 3
    if isinstance(problem, errors.StoreError):
        kind = 2 if isinstance(problem, rebuilding.MisfitError) else 1
    kinds = [kind for (kind,) in agreement.gather([kind])]
    if any(kinds):
        texts = agreement.gather_bytes(in_words(problem).encode())
        worst = kinds.index(max(kinds))
        if problem is not None and kind == max(kinds):
            raise problem
        what = section.text_of(records[0].version) if records else section.text
        make = (errors.StoreError, rebuilding.MisfitError, errors.CxlError)[max(kinds) - 1]
        raise make(
            f"process {writers[worst]} could not restore {what}:"
            f" {texts[worst].decode(errors='replace')}"
        ) from problem
    return result[0]
