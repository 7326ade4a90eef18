"""Gathers values from the processes of a job, with a program that JAX runs."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jax_cxl import ops
from jax_cxl._job import lifecycle, mesh


def processes() -> list[int]:
    """Returns the indices of the processes that are in the job, in order."""
    return sorted({device.process_index for device in _devices()})


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


def gather(words: np.ndarray) -> list[np.ndarray]:
    """Returns the words of each process, in the order of `processes()`."""
    devices = tuple(_devices())
    rows = {
        device.process_index: row
        for device, row in zip(devices, _all_gather(devices, words), strict=True)
    }
    return [rows[process] for process in processes()]


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
