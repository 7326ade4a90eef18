"""Arrays over the memory of a store, for libraries that take DLPack."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from jax_cxl._store.memory.devices import Devices

_CPU, _CUDA_HOST = 1, 3  # kinds of devices in DLPack

# Codes of DLPack for kinds of NumPy, and for other dtypes of JAX.
_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
_OTHER_CODES = {
    np.dtype(ml_dtypes.bfloat16): 4,
    np.dtype(ml_dtypes.float8_e4m3b11fnuz): 9,
    np.dtype(ml_dtypes.float8_e4m3fn): 10,
    np.dtype(ml_dtypes.float8_e4m3fnuz): 11,
    np.dtype(ml_dtypes.float8_e5m2): 12,
    np.dtype(ml_dtypes.float8_e5m2fnuz): 13,
}


def code(dtype: np.dtype) -> int | None:
    """Returns DLPack's code of a dtype; None if there is none."""
    return _OTHER_CODES.get(dtype, _CODES.get(dtype.kind))


class Exported:
    """An array over the memory, with `__dlpack__`."""

    def __init__(self, capsule: Callable[[], Any], gpu: bool):
        self._capsule, self._gpu = capsule, gpu

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule()

    def __dlpack_device__(self) -> tuple[int, int]:
        return (_CUDA_HOST if self._gpu else _CPU), 0


def export(
    devices: Devices,
    place: tuple[int, int],
    shape: tuple[int, ...],
    dtype: np.dtype,
    owner: Any,
    *,
    gpu: bool,
) -> Exported:
    """Returns an array over the memory.

    Args:
      devices: the memory.
      place: a device of the memory, and the offset of the array there.
      shape: its shape.
      dtype: its dtype, which has a code.
      owner: what lives as long as the array.
      gpu: whether the memory is registered with CUDA. JAX then makes an array in `pinned_host`.
    """
    device, offset = place
    kind, bits = code(dtype), 8 * dtype.itemsize
    make = devices.core.array
    return Exported(lambda: make(device, offset, list(shape), kind, bits, gpu, owner), gpu)
