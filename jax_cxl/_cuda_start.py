"""Start-up of the ranks that are GPUs, on top of the runtime that all ranks have."""

import functools
import logging
from types import ModuleType
from typing import Any

import jax

from jax_cxl import _compat, _config, _core, _failures


def start(cuda: ModuleType, devices: list[int], config: _config.Config, meeting: str) -> None:
    """Starts this process's GPUs; all processes call it together, after `_core.start`.

    Where CUDA cannot register the pool's memory (files of some file systems), the data goes through
    pinned memory of the host. The processes have to agree on that: one that cannot is enough.

    Args:
      cuda: jax_cxl._cuda.
      devices: numbers of the GPUs on this host, as XLA and CUDA count them.
      config: the settings.
      meeting: prefix of keys of the coordination service that nobody else uses.
    """
    _explain_errors(cuda)
    core: Any = _core
    runtime = core.runtime()
    obstacles = _exchange(meeting, cuda.register_pool(runtime, devices))
    direct = not any(obstacles)
    if not direct:
        logging.getLogger("jax_cxl").warning(
            "GPUs do not reach the pool themselves, all data is copied by the host: %s",
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
    )


@functools.cache
def _explain_errors(cuda: ModuleType) -> None:
    """Gives errors of programs the reason for which a kernel of ours has stopped the GPU.

    All that CUDA says then, to whatever comes next, is that some kernel failed.
    """

    def find(text: str) -> _failures.Failure | None:
        if "cuda" not in text.lower() and "jax_cxl" not in text:
            return None
        failure = cuda.failure()
        return None if failure is None else _failures.Failure(*failure)

    _failures.add_source(find)


def _exchange(meeting: str, text: str) -> list[str]:
    """Returns the texts of all processes."""
    if jax.process_count() == 1:
        return [text]
    client = _compat.coordination_client()
    client.key_value_set(f"{meeting}/pool_obstacle/{jax.process_index()}", text or "none")
    keys = (f"{meeting}/pool_obstacle/{process}" for process in range(jax.process_count()))
    texts = [client.blocking_key_value_get(key, _compat.MEETING_TIMEOUT_MS) for key in keys]
    return ["" if text == "none" else text for text in texts]
