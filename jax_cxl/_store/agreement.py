"""Values that the processes of a job exchange before they save or restore."""

from collections.abc import Sequence

import numpy as np

from jax_cxl import _core, errors
from jax_cxl._store import frameworks

_MOST_VALUES = 8
_WORD_BYTES = 4


def processes() -> list[int]:
    """Returns the indices of the processes that are in the job, in order.

    A process that has not imported JAX is in no job with others.
    """
    if not frameworks.jax():
        return [0]
    from jax_cxl._store import gathering

    return gathering.processes()


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
    """Exchanges values. Returns the values of each process, in the order of `processes()`.

    Every process calls this function at the same place of its program. There are at most eight
    values, which are unsigned and have 64 bits.
    """
    if len(processes()) == 1:
        return [tuple(values)]
    words = np.zeros((_MOST_VALUES, 2), np.uint32)
    words[: len(values)] = [(v >> 32, v & 0xFFFFFFFF) for v in values]
    from jax_cxl._store import gathering

    return [
        tuple(int(high) << 32 | int(low) for high, low in row[: len(values)])
        for row in gathering.gather(words)
    ]


def gather_bytes(data: bytes) -> list[bytes]:
    """Exchanges bytes. Returns the bytes of each process, in the order of `processes()`.

    Every process calls this function at the same place of its program.
    """
    sizes = [size for (size,) in gather([len(data)])]
    if len(sizes) == 1:
        return [data]
    from jax_cxl._store import gathering

    # Round up to a power of two: few different sizes mean few compilations.
    count = 1 << (max(*sizes, 1) * 2 // _WORD_BYTES).bit_length()
    words = np.frombuffer(data.ljust(count * _WORD_BYTES, b"\0"), np.uint32)
    return [row.tobytes()[:size] for row, size in zip(gathering.gather(words), sizes, strict=True)]


def ranks_of(processes: Sequence[int]) -> list[int]:
    """Returns the ranks of some processes, in order."""
    if not frameworks.jax():
        return []
    from jax_cxl._store import gathering

    return gathering.ranks_of(processes)


def lost_rank(processes: Sequence[int]) -> int | None:
    """Returns a rank of a process that has ended, None if there is none."""
    ended = (rank for rank in ranks_of(processes) if _core.rank_lost(rank) or _core.rank_left(rank))
    return next(ended, None)


def mismatch(
    processes: Sequence[int], sides: tuple[int, int], texts: Sequence[str], what: str
) -> errors.MismatchError:
    """Returns the error for two processes that disagree.

    Args:
      processes: indices of the processes of the job.
      sides: positions in `processes` of the two that disagree.
      texts: what each of the two has.
      what: how they disagree: the words after "processes A and B" in the message.
    """
    first, other = (processes[side] for side in sides)
    error = errors.MismatchError(
        f"processes {first} and {other} {what}: process {first} has {texts[0]}, and process"
        f" {other} has {texts[1]}"
    )
    error.ranks = tuple(rank for process in (first, other) for rank in ranks_of([process])[:1])
    error.calls = tuple(texts)
    return error
