"""Makes all processes of a job raise the error of one of them."""

import json
from collections.abc import Callable, Sequence
from typing import TypeVar

from jax_cxl import errors
from jax_cxl._store import agreement
from jax_cxl._store.memory import opening
from jax_cxl._store.memory.section import DeletedError, OvertakenError

Result = TypeVar("Result")

# Errors that end a publisher. All processes raise the same kind, so that the publisher ends on all.
_KINDS = {kind.__name__: kind for kind in (OvertakenError, DeletedError)}


def raise_first(
    writers: Sequence[int], problem: Exception | None, what: str, data: bytes = b""
) -> list[bytes]:
    """Raises on all processes if one has a problem, and could not do `what`. Returns all data."""
    own = json.dumps(in_words(problem)).encode() + b"\n" + data
    told = [each.split(b"\n", 1) for each in agreement.gather_bytes(own)]
    if problem is not None:
        raise problem
    for process, (text, _) in zip(writers, told, strict=True):
        if found := json.loads(text):
            name, _, rest = found.partition(": ")
            kind = _KINDS.get(name, errors.StoreError)
            raise kind(f"process {process} {what}: {name}: {rest}")
    return [each for _, each in told]


def on_all(writers: Sequence[int], move: Callable[[], Result], what: str) -> Result:
    """Makes a move, waits until all processes have made theirs, and returns its result."""
    problem: Exception | None = None
    result: Result
    try:
        result = move()
    except Exception as error:
        problem = error
    raise_first(writers, problem, what)
    return result


def in_words(problem: BaseException | None) -> str:
    """Returns an error in words, "" if there is none."""
    return f"{type(problem).__name__}: {problem}" if problem is not None else ""


def check_words(
    told: Sequence[Sequence[str]], writers: Sequence[int], problem: Exception | None
) -> None:
    """Raises the problem of a process, or an error that says how the processes disagree.

    `told` has the operation, the memory and the problem of each process in words.
    """
    absent = [text.startswith(opening.AbsentError.__name__) for *_, text in told]
    # A process that finds no store raises the problem of another process that has one.
    if problem is not None and (all(absent) or not isinstance(problem, opening.AbsentError)):
        raise problem
    for _, process, (operation, _, text) in sorted(zip(absent, writers, told, strict=True)):
        if text:
            raise errors.StoreError(f"process {process} cannot {operation}: {text}")
    other = next((number for number, of in enumerate(told) if of != told[0]), None)
    if other is None:
        return
    sides = [told[0][:2], told[other][:2]]
    field = 0 if sides[0][0] != sides[1][0] else 1
    what = "call different operations" if field == 0 else "have different memory"
    raise agreement.mismatch(writers, (0, other), [side[field] for side in sides], what)
