"""The platforms whose devices can be ranks, and their differences."""

import functools
import importlib
from types import ModuleType
from typing import Any, NamedTuple

from jax_cxl import _core, _text, errors

_NO_CUDA = """\
JAX's default backend is CUDA, but this jax_cxl was built without its CUDA module: {error}.
Build it where nvcc (CUDA 13) is on PATH, in a checkout of jax_cxl:
    pip install -e .
docs/cuda.md has the details.
To communicate between CPU devices instead, set JAX_PLATFORMS=cpu."""


class Platform(NamedTuple):
    """A kind of device.

    Attributes:
      target_name: its name in XLA's registry of custom calls.
      module: name of the native module with the handlers.
      rank_bytes: bytes for each rank in a pool of automatic size.
    """

    name: str
    target_name: str
    module: str
    rank_bytes: int

    def load(self) -> ModuleType:
        """Returns the native module."""
        try:
            module = importlib.import_module(self.module)
        except ImportError as error:
            raise errors.CxlError(_NO_CUDA.format(error=_text.clause(error))) from error
        if module is not _core:
            module.use_core(_core.PROGRAMS, _core.FAILURES)
        return module

    def ordinal(self, device: Any) -> int:
        """Returns the device ordinal that XLA passes to a handler on this device."""
        return device.id if self.name == "cpu" else device.local_hardware_id


CPU = Platform("cpu", "cpu", "jax_cxl._core", _core.AUTOMATIC_RANK_BYTES)

# A GPU moves about 50 GB/s through its link, five times as much as a core copies. A doorbell takes
# some microseconds, so GPUs need larger chunks between two doorbells than CPUs: a slot has 4 MiB.
CUDA = Platform("cuda", "CUDA", "jax_cxl._cuda", 192 << 20)

ALL = (CPU, CUDA)


def of(device: Any) -> Platform:
    """Returns the platform of a device."""
    # JAX calls both CUDA and ROCm devices "gpu".
    version = device.client.platform_version.lower()
    if device.platform == "cpu":
        return CPU
    if device.platform in ("gpu", "cuda") and "rocm" not in version:
        return CUDA
    name = "rocm" if "rocm" in version else device.platform
    raise errors.CxlError(
        f"jax_cxl communicates between CPU or CUDA devices, and JAX's default backend is {name}."
        " Set JAX_PLATFORMS=cpu or JAX_PLATFORMS=cuda."
    )


@functools.cache
def only_cpus() -> bool:
    """Whether JAX has only CPU devices. To ask each of 10,000 arrays instead would take 50 ms."""
    from jax_cxl import _compat  # The store imports this module in programs without JAX.

    return set(_compat.backends.names()) == {"cpu"}
