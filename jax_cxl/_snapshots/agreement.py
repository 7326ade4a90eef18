"""What the processes of a job tell each other before they save or restore."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jax_cxl import _core
from jax_cxl._runtime import lifecycle, mesh


def processes() -> list[int]:
    """Returns the indices of the processes that are in the job, in order."""
    return sorted({device.process_index for device in _devices()})


def gather(values: Sequence[int]) -> list[tuple[int, ...]]:
    """Returns the values of each process of the job, in the order of `processes()`.

    Every process calls this at the same place of its program. Values are unsigned, of 64 bits.
    """
    devices = _devices()
    members = processes()
    if len(members) == 1:
        return [tuple(values)]
    words = np.array([word for v in values for word in (v >> 32, v & 0xFFFFFFFF)], np.uint32)
    rows = _all_gather(devices, words)
    by_process = {}
    for device, row in zip(devices, rows, strict=True):
        by_process[device.process_index] = tuple(
            int(high) << 32 | int(low) for high, low in row.reshape(-1, 2)
        )
    return [by_process[process] for process in members]


def lost_rank(processes: Sequence[int]) -> int | None:
    """Returns a rank of one of these processes that has ended without saying so, else None."""
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


def _all_gather(devices: Sequence[Any], words: np.ndarray) -> np.ndarray:
    from jax_cxl.ops import all_gather

    line = mesh.make_mesh(
        (len(devices),), ("rank",), (jax.sharding.AxisType.Auto,), devices=devices
    )
    own = jax.make_array_from_callback(
        (len(devices), len(words)),
        jax.NamedSharding(line, jax.P("rank")),
        lambda _: words[None],
    )
    gathered = jax.jit(
        jax.shard_map(
            lambda x: all_gather(x[0], "rank"),
            mesh=line,
            in_specs=jax.P("rank"),
            out_specs=jax.P(),
            check_vma=False,
        )
    )(own)
    return np.asarray(gathered.addressable_data(0))
