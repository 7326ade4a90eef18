"""Starts the ranks that are GPUs, after the part of the start that is the same for all ranks."""

import functools
import logging
from types import ModuleType
from typing import Any

import jax

from jax_cxl import _core
from jax_cxl._job import configuration
from jax_cxl._job.ending import program_errors


def start(
    cuda: ModuleType,
    devices: list[int],
    config: configuration.Config,
    tuning: Any,
    gpu_writes_memory: bool,
) -> None:
    """Starts this process's GPUs. All processes call it together, after `_core.start`.

    If CUDA cannot register the pool's memory in some process (as with files of some file systems),
    all processes move the data through pinned memory of their hosts. `devices` are ordinals of the
    GPUs on this host, as XLA and CUDA count them.
    """
    _explain_errors(cuda)
    core: Any = _core
    runtime = core.runtime()
    obstacles = [cuda.register_pool(runtime, devices)]
    if jax.process_count() > 1:
        what = "report whether GPUs can access the pool"
        told = _core.exchange("pool_obstacle", what, obstacles[0].encode())
        obstacles = [obstacle.decode() for obstacle in told]
    direct = not any(obstacles)
    if not direct:
        logging.getLogger("jax_cxl").warning(
            "GPUs cannot access the pool directly, so the host copies all data: %s",
            next(filter(None, obstacles)),
        )
    cuda.start(
        runtime,
        devices,
        direct=direct,
        slot_bytes=config.slot_bytes,
        num_slots=config.num_slots,
        warn_after=config.warn_after,
        timeout=config.timeout,
        flush_threads=config.flush_threads or tuning.flush_threads,
        flush_piece_bytes=tuning.flush_piece_bytes,
        gpu_writes_memory=gpu_writes_memory,
    )


@functools.cache
def _explain_errors(cuda: ModuleType) -> None:
    """Makes the error of a program explain why a kernel of jax_cxl has stopped the GPU.

    CUDA itself only reports, at the next operation, that some kernel failed.
    """

    program_errors.add_source(
        lambda text: cuda.failure() if "cuda" in text.lower() or "jax_cxl" in text else None
    )
