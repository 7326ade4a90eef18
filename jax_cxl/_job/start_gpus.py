"""Starts the ranks that are GPUs, after the part of the start that is the same for all ranks."""

import functools
from types import ModuleType
from typing import Any

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
    """Starts this process's GPUs, after `_core.start`.

    `devices` are ordinals of the GPUs on this host, as XLA and CUDA count them.
    """
    _explain_errors(cuda)
    core: Any = _core
    cuda.start(
        core.runtime(),
        devices,
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
