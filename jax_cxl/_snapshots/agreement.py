"""Values that the processes of a job exchange before they save or restore."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jax_cxl import _core, ops
from jax_cxl._runtime import lifecycle, mesh

_MOST_VALUES = 4


def processes() -> list[int]:
    """Returns the indices of the processes that are in the job, in order."""
    return sorted({device.process_index for device in _devices()})


def gather(values: Sequence[int]) -> list[tuple[int, ...]]:
    """Returns the values of each process of the job, in the order of `processes()`.

    Every process calls this function at the same place of its program. There are at most four
    values, which are unsigned and have 64 bits.
    """
    devices = _devices()
    members = processes()
    if len(members) == 1:
        return [tuple(values)]
    words = np.zeros((_MOST_VALUES, 2), np.uint32)
    words[: len(values)] = [(v >> 32, v & 0xFFFFFFFF) for v in values]
    rows = _all_gather(tuple(devices), words)
    by_process = {}
    for device, row in zip(devices, rows, strict=True):
        by_process[device.process_index] = tuple(
            int(high) << 32 | int(low) for high, low in row[: len(values)]
        )
    return [by_process[process] for process in members]


def lost_rank(processes: Sequence[int]) -> int | None:
    """Returns a rank of a process that has ended without announcing it, None if there is none."""
    running = lifecycle.current()
    if running is None:
        return None
    of_process = (
        running.rank_of_device[device.id]
        for device in _devices()
        if device.process_index in processes
    )
    return next((rank for rank in of_process if _core.rank_lost(rank)), None)


def _devices() -> list[Any]:
    if jax.process_count() == 1:
        return jax.devices()[:1]
    ranks = lifecycle.ensure_started().rank_of_device
    return [device for device in jax.devices() if device.id in ranks]


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
      generation: generation of the job. A program of an older generation must not communicate.
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
