"""What the processes of a job exchange before they save or restore: values, and errors."""

import contextlib
import contextvars
import dataclasses
import json
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from jax_cxl import _core, errors
from jax_cxl._job import configuration
from jax_cxl._store import frameworks
from jax_cxl._store.memory import opening
from jax_cxl._store.memory.section import DeletedError, OvertakenError

Result = TypeVar("Result")


@dataclasses.dataclass
class _Topic:
    """The topic of a thread's exchanges, and what they are for. All calls of stores share "".

    Attributes:
      seconds: how long a process may wait for something else before it comes to an exchange.
      count: how many exchanges this block has made.
    """

    name: str = ""
    text: str = "a call of a store"
    seconds: float = 0
    count: int = 0


_topic: contextvars.ContextVar[_Topic | None] = contextvars.ContextVar("topic", default=None)

# Errors that end a publisher. All processes raise the same kind, so that the publisher ends on all.
_KINDS = {kind.__name__: kind for kind in (OvertakenError, DeletedError)}


@contextlib.contextmanager
def topic(text: str, seconds: float = 0, name: str | None = None) -> Iterator[None]:
    """Gives this thread's exchanges in a block a topic of their own, or the topic `name`.

    They meet only those of blocks with the same topic. So threads may do different things in an
    order that is not the same on all processes. The exchanges wait `seconds` longer than others.

    Exchanges at different places of blocks, or of blocks with other texts, raise MismatchError. So
    a process that tries again after a timeout does not take the bytes of one that is still there.
    """
    before = _topic.set(_Topic(text if name is None else name, text, seconds))
    try:
        yield
    finally:
        _topic.reset(before)


def processes() -> list[int]:
    """Returns the indices of the job's processes, in order; a process without JAX is alone."""
    if not frameworks.jax():
        return [0]
    from jax_cxl._job import exchange

    return exchange.processes()


def job() -> tuple[int, ...]:
    """Returns the generation of the job, which grows with each regroup, and its processes."""
    alive = processes()
    if len(alive) == 1:
        return 0, *alive
    from jax_cxl._job import lifecycle

    return getattr(lifecycle.current(), "generation", 0), *alive


def is_connected() -> bool:
    """Whether `jax.distributed` has connected several processes. JAX makes no devices for this."""
    if not frameworks.jax():
        return False
    from jax_cxl import _compat

    return _compat.distributed.process_count() > 1


def own() -> int:
    """Returns the index of this process."""
    jax = frameworks.jax()
    return jax.process_index() if jax else 0


def gather(values: Sequence[int]) -> list[tuple[int, ...]]:
    """Exchanges unsigned 64-bit values. Returns those of each process, as `gather_bytes` does."""
    form = struct.Struct(f"<{len(values)}Q")
    return [form.unpack(data) for data in gather_bytes(form.pack(*values))]


def gather_bytes(
    data: bytes, topic: str = "", what: str = "", timeout: float | None = None
) -> list[bytes]:
    """Exchanges bytes. Returns the bytes of each process, in the order of `processes()`.

    The arguments are those of `exchange.all_gather`. By default the topic is that of this thread.
    """
    if not frameworks.jax():
        return [data]
    from jax_cxl._job import exchange

    of = _topic.get() or _Topic()
    of.count += 1
    topic = topic or f"store: {of.name}"
    what = what or of.text + (f", exchange {of.count}" if of.count > 1 else "")
    if timeout is None and of.seconds:
        timeout = configuration.from_environment().timeout + of.seconds
    return exchange.all_gather(topic, what, data, timeout)


def ranks_of(processes: Sequence[int]) -> list[int]:
    """Returns the ranks of some processes, in order."""
    if not frameworks.jax():
        return []
    from jax_cxl._job import exchange

    return exchange.ranks_of(processes)


def lost_rank(processes: Sequence[int]) -> int | None:
    """Returns a rank of a process that has ended or was left out by a regroup, None if none."""
    if (jax := frameworks.jax()) is None:
        return None
    from jax_cxl._job import lifecycle

    if (running := lifecycle.current()) is None:
        return None
    for rank, device in enumerate(jax.devices()):
        if device.process_index in processes and (
            device.id not in running.rank_of_device
            or _core.rank_lost(rank)
            or _core.rank_left(rank)
        ):
            return rank
    return None


def mismatch(
    processes: Sequence[int], sides: tuple[int, int], texts: Sequence[str], what: str
) -> errors.MismatchError:
    """Returns the error for two processes, at positions `sides`, that disagree as `what` says."""
    first, other = (processes[side] for side in sides)
    error = errors.MismatchError(
        f"processes {first} and {other} {what}: process {first} has {texts[0]}, and process"
        f" {other} has {texts[1]}"
    )
    error.ranks = tuple(rank for process in (first, other) for rank in ranks_of([process])[:1])
    error.calls = tuple(texts)
    return error


def other_memory(where: str, first: int, process: int) -> str:
    """Returns the text of the error for a process that does not find what the first one has."""
    return (
        f"{where} is not the same memory on processes {first} and {process}: name the same memory"
        " on all processes"
    )


def raise_first(
    writers: Sequence[int], problem: Exception | None, what: str, data: bytes = b""
) -> list[bytes]:
    """Raises on all processes if one has a problem, and could not do `what`. Returns all data."""
    own = json.dumps(in_words(problem)).encode() + b"\n" + data
    told = [each.split(b"\n", 1) for each in gather_bytes(own)]
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
    raise mismatch(writers, (0, other), [side[field] for side in sides], what)
