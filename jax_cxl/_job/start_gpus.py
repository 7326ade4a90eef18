"""Starts the ranks that are GPUs, after the part of the start that is the same for all ranks."""

import functools
from types import ModuleType
from typing import Any

import jax

from jax_cxl import _core, errors
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

    `devices` are ordinals of the GPUs on this host, as XLA and CUDA count them. If a process cannot
    start its GPUs, perhaps because CUDA cannot register the pool's memory there, all raise.
    """
    _explain_errors(cuda)
    core: Any = _core
    problem: Exception | None = None
    try:
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
    except errors.CxlError as error:
        problem = error
    told = [str(problem or "").encode()]
    if jax.process_count() > 1:
        told = _core.exchange("start of GPUs", "start their GPUs", told[0])
    if problem is not None:
        raise problem
    for process, text in enumerate(told):
        if text:
            raise errors.PoolError(f"process {process} of those that have GPUs: {text.decode()}")


@functools.cache
def _explain_errors(cuda: ModuleType) -> None:
    """Makes the error of a program explain why a kernel of jax_cxl has stopped the GPU.

    CUDA itself only reports, at the next operation, that some kernel failed.
    """

    program_errors.add_source(
        lambda text: cuda.failure() if "cuda" in text.lower() or "jax_cxl" in text else None
    )
