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
    """Returns a function like `pool.store_check_word` that lets a GPU write the word, and "".

    Returns None, and the reason, if this host has no GPU that can write into the memory.
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
    return _Writes(pool, copies, ordinal, lambda line: jax.device_put(line, device)), ""


class _Writes:
    """Writes whole cache lines, as the copies of collectives do. A line begins with the word."""

    def __init__(self, pool: Any, copies: Any, ordinal: int, put: Callable[[Any], Any]):
        self._pool = pool
        self._copies = copies
        self._ordinal = ordinal
        self._put = put

    def __call__(self, index: int, value: int, write_back: bool) -> None:
        words = np.full(_CACHE_LINE // 8, value, np.uint64)
        line = self._put(words.view(np.uint32)).block_until_ready()  # JAX has no uint64 by default.
        target = self._pool.check_word_address(index)
        source = line.unsafe_buffer_pointer()
        self._copies.wait(self._copies.start(self._ordinal, [(source, target, _CACHE_LINE)]))
        if write_back:
            self._pool.write_back_check_word(index)
