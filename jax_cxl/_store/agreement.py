"""Values that the processes of a job exchange before they save or restore."""

import contextlib
import contextvars
import struct
from collections.abc import Iterator, Sequence

from jax_cxl import _core, errors
from jax_cxl._store import frameworks

# The topic of this thread's exchanges; "" for a topic that all calls of stores share.
_topic: contextvars.ContextVar[str] = contextvars.ContextVar("topic", default="")


@contextlib.contextmanager
def topic(what: str) -> Iterator[None]:
    """Gives this thread's exchanges in a block a topic of their own.

    They meet only those of blocks with the same topic. So threads may do different things in an
    order that is not the same on all processes.
    """
    before = _topic.set(what)
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

    topic = topic or f"store: {_topic.get()}"
    what = what or _topic.get() or "a call of a store"
    return exchange.all_gather(topic, what, data, timeout)


def ranks_of(processes: Sequence[int]) -> list[int]:
    """Returns the ranks of some processes, in order."""
    if not frameworks.jax():
        return []
    from jax_cxl._job import exchange

    return exchange.ranks_of(processes)


def lost_rank(processes: Sequence[int]) -> int | None:
    """Returns a rank of a process that has ended, None if there is none."""
    ended = (rank for rank in ranks_of(processes) if _core.rank_lost(rank) or _core.rank_left(rank))
    return next(ended, None)


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
