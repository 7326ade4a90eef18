"""Values that the processes of a job exchange before they save or restore."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jax_cxl import _core, errors, ops
from jax_cxl._job import lifecycle, mesh

_MOST_VALUES = 8
_WORD_BYTES = 4


def processes() -> list[int]:
    """Returns the indices of the processes that are in the job, in order."""
    return sorted({device.process_index for device in _devices()})


def gather(values: Sequence[int]) -> list[tuple[int, ...]]:
    """Exchanges values. Returns the values of each process, in the order of `processes()`.

    Every process calls this function at the same place of its program. There are at most eight
    values, which are unsigned and have 64 bits.
    """
    if len(processes()) == 1:
        return [tuple(values)]
    words = np.zeros((_MOST_VALUES, 2), np.uint32)
    words[: len(values)] = [(v >> 32, v & 0xFFFFFFFF) for v in values]
    return [
        tuple(int(high) << 32 | int(low) for high, low in row[: len(values)])
        for row in _gather(words)
    ]


def gather_bytes(data: bytes) -> list[bytes]:
    """Exchanges bytes. Returns the bytes of each process, in the order of `processes()`.

    Every process calls this function at the same place of its program.
    """
    sizes = [size for (size,) in gather([len(data)])]
    if len(sizes) == 1:
        return [data]
    # Round up to a power of two: few different sizes mean few compilations.
    count = 1 << (max(*sizes, 1) * 2 // _WORD_BYTES).bit_length()
    words = np.frombuffer(data.ljust(count * _WORD_BYTES, b"\0"), np.uint32)
    return [row.tobytes()[:size] for row, size in zip(_gather(words), sizes, strict=True)]


def ranks_of(processes: Sequence[int]) -> list[int]:
    """Returns the ranks of some processes, in order."""
    running = lifecycle.current()
    if running is None:
        return []
    return [
        running.rank_of_device[device.id]
        for device in _devices()
        if device.process_index in processes
    ]


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


def _devices() -> list[Any]:
    if jax.process_count() == 1:
        return jax.devices()[:1]
    ranks = lifecycle.ensure_started().rank_of_device
    return [device for device in jax.devices() if device.id in ranks]


def _gather(words: np.ndarray) -> list[np.ndarray]:
    """Returns the words of each process, in the order of `processes()`."""
    devices = tuple(_devices())
    rows = {
        device.process_index: row
        for device, row in zip(devices, _all_gather(devices, words), strict=True)
    }
    return [rows[process] for process in processes()]


def _all_gather(devices: tuple[Any, ...], words: np.ndarray) -> np.ndarray:
    program, sharding = _program(devices, lifecycle.ensure_started().generation)
    own = jax.make_array_from_callback(
        (len(devices), *words.shape), sharding, lambda _: words[None]
    )
    return np.asarray(program(own).addressable_data(0))


@functools.lru_cache(1)
def _program(devices: tuple[Any, ...], generation: int) -> tuple[Any, jax.NamedSharding]:
    """Returns a program that gathers values of all devices, and the sharding of its argument.

    Args:
      devices: devices of the job.
      generation: generation of the job. It belongs to the key of the cache, because a program of an
        older generation must not communicate.
    """
    del generation
    ranks = mesh.make_mesh(
        (len(devices),), ("rank",), (jax.sharding.AxisType.Auto,), devices=devices
    )
    gather_rows = jax.shard_map(
        lambda x: ops.all_gather(x[0], "rank"),
        mesh=ranks,
        in_specs=jax.P("rank"),
        out_specs=jax.P(),
        check_vma=False,
    )
    return jax.jit(gather_rows), jax.NamedSharding(ranks, jax.P("rank"))
