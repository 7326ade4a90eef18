"""Lets a GPU of this host write into a pool's memory, for `doctor --device --with`."""

import os
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jax_cxl import _core, errors
from jax_cxl._job import platforms

_CACHE_LINE = 64

Writer = Callable[[int, int, bool], None]


def open_writer(pool: "_core.Pool") -> tuple[Writer | None, str]:
    """Returns a function that lets a GPU of this host write a check word, and "".

    The function takes the arguments of `pool.store_check_word`. If no GPU of this host can write
    into the memory, `open_writer` returns None and the reason.
    """
    # By default, JAX takes most of the GPU's memory.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    try:
        device = jax.local_devices(backend="gpu")[0]
    except RuntimeError:
        return None, "no GPU"
    try:
        platforms.of(device)  # Raises an error if the GPU is not a CUDA device.
        ordinal = platforms.CUDA.ordinal(device)
        first = pool.check_word_address(0)
        size = pool.check_word_address(pool.check_words()) - first
        copies = platforms.CUDA.load().DeviceCopies.create(pool, first, size, [ordinal])
    except errors.CxlError as error:
        return None, str(error)
    return writer(pool, copies, ordinal, device), ""


def writer(pool: Any, copies: Any, ordinal: int, device: jax.Device | None) -> Writer:
    """Returns a function that writes whole cache lines, as the copies of collectives do."""

    def write(index: int, value: int, write_back: bool) -> None:
        words = np.full(_CACHE_LINE // 8, value, np.uint64).view(np.uint32)  # JAX has no uint64.
        line = jax.device_put(words, device).block_until_ready()
        target = pool.check_word_address(index)  # The line begins with the word.
        copy = (line.unsafe_buffer_pointer(), target, _CACHE_LINE)
        copies.wait(copies.start(ordinal, [copy]))
        if write_back:
            pool.write_back_check_word(index)

    return write
