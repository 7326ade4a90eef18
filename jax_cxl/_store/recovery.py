"""The processes of a job restore a version together. Their later saves continue from it."""

import logging
from collections.abc import Callable
from typing import TypeVar

from jax_cxl import errors
from jax_cxl._store import agreement
from jax_cxl._store.reading import rebuilding
from jax_cxl._store.reading.restoring import Reader
from jax_cxl._store.reading.validity import Records
from jax_cxl._store.writing.problems import in_words
from jax_cxl._store.writing.publisher import Publisher

Result = TypeVar("Result")


def restore(publisher: Publisher, records: Records, read: Callable[[Reader], Result]) -> Result:
    """Reads a version on all processes, or raises on all. All processes call it.

    The version is not overwritten until the next two versions are valid.

    Args:
      publisher: the publisher of the name, after `agree`.
      records: the records of the version.
      read: takes a reader of the version, and returns what this process needs from it.

    Raises:
      StoreError: the version is damaged, or does not fit, on one of the processes.
      CxlError: a process has another error.
    """
    problem: Exception | None = None
    result: list[Result] = []
    writers = agreement.processes()
    try:
        result.append(read(Reader(publisher.section, records)))
    except Exception as error:
        problem = error
    # After a StoreError because of damage, `restore_newest` tries an older version. After any other
    # error it does not.
    kind = 0 if problem is None else 3
    if isinstance(problem, errors.StoreError):
        kind = 2 if isinstance(problem, rebuilding.MisfitError) else 1
    kinds = [kind for (kind,) in agreement.gather([kind])]
    if any(kinds):
        texts = agreement.gather_bytes(in_words(problem).encode())
        worst = kinds.index(max(kinds))
        if problem is not None and kind == max(kinds):
            raise problem
        make = (errors.StoreError, rebuilding.MisfitError, errors.CxlError)[max(kinds) - 1]
        raise make(
            f"process {writers[worst]} could not restore"
            f" {publisher.section.text_of(records[0].version)}:"
            f" {texts[worst].decode(errors='replace')}"
        ) from problem
    publisher.continue_from(records[0].number)
    return result[0]


def restore_newest(
    publisher: Publisher, read: Callable[[Reader], Result]
) -> tuple[int, Result] | None:
    """Reads the newest version that is undamaged; returns None if there is none.

    Args:
      publisher: as for `restore`.
      read: as for `restore`.

    Raises:
      StoreError: all versions are damaged, or the newest undamaged one does not fit.
    """
    problem: Exception | None = None
    for records in publisher.valid():
        try:
            return records[0].version, restore(publisher, records, read)
        except rebuilding.MisfitError:
            raise
        except errors.StoreError as error:
            problem = error
            logging.getLogger("jax_cxl").warning(
                "%s is not used: %s", publisher.section.text_of(records[0].version), error
            )
    if problem is not None:
        raise problem
    return None
