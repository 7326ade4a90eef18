"""Arrays over the memory of a store for JAX and other libraries, by DLPack."""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from jax_cxl import _core

_CPU, _CUDA_HOST = 1, 3  # kinds of devices in DLPack

# DLPack's codes for NumPy's kinds of dtypes, and for dtypes of the package ml_dtypes.
_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
_OTHER_CODES = {
    "bfloat16": 4,
    "float8_e4m3b11fnuz": 9,
    "float8_e4m3fn": 10,
    "float8_e4m3fnuz": 11,
    "float8_e5m2": 12,
    "float8_e5m2fnuz": 13,
}


def code_of(dtype: np.dtype) -> int | None:
    """Returns DLPack's code of a dtype, None if it has none."""
    return _OTHER_CODES.get(dtype.name, _CODES.get(dtype.kind))


class Array:
    """An array over the memory, with `__dlpack__`. It keeps `owner` alive."""

    def __init__(
        self,
        core: _core.PersistentMemory,
        place: tuple[int, int],
        shape: Sequence[int],
        dtype: np.dtype,
        gpu: int | None,
        owner: object,
    ):
        """Makes an array. `gpu` is the ordinal of the GPU whose `pinned_host` memory holds it.

        The memory is registered for this GPU; None is for an array of the CPU.
        """
        code, bits = code_of(dtype), 8 * dtype.itemsize
        assert code is not None
        self._capsule = functools.partial(core.array, *place, list(shape), code, bits, gpu, owner)
        self._gpu = gpu

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule()

    def __dlpack_device__(self) -> tuple[int, int]:
        return (_CPU, 0) if self._gpu is None else (_CUDA_HOST, self._gpu)
