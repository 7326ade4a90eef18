"""The bytes of a shard of an array, held until they are saved."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


class HostBytes:
    """The bytes of an array in this host's memory, in row-major order.

    A view of a buffer of XLA keeps XLA from giving the buffer to a program that may overwrite it:
    such a program gets another buffer, with a copy. So the bytes stay as they are.
    """

    def __init__(self, array: Any):
        """Takes hold of an array of NumPy, or of one of JAX whose values have been computed."""
        flat = np.ascontiguousarray(array).reshape(-1)
        self._bytes = flat.view(np.uint8)

    def read(self, start: int, end: int) -> np.ndarray:
        """Returns a view of some of the bytes."""
        return self._bytes[start:end]


class DeviceBytes:
    """The bytes of an array in the memory of a GPU, in row-major order.

    Attributes:
      ordinal: of the GPU in this process.
      address: of the first byte.
    """

    def __init__(self, array: jax.Array):
        """Takes hold of an array on one GPU, whose values have been computed."""
        # As a view in host memory does, this keeps XLA from overwriting the buffer.
        self._held = array.__dlpack__()
        (device,) = array.devices()
        self.ordinal: int = device.local_hardware_id
        self.address: int = array.unsafe_buffer_pointer()


def hold(array: Any) -> HostBytes | DeviceBytes:
    """Takes hold of an array of NumPy, or of one of JAX on one device."""
    if not isinstance(array, jax.Array):
        return HostBytes(np.array(array))  # A copy: NumPy's arrays may change.
    (device,) = array.devices()
    bits = jax.dtypes.itemsize_bits(array.dtype)
    if device.platform == "cpu" or bits < 8 or not _is_row_major(array):
        return HostBytes(array)
    if bits == 8 and array.dtype != jnp.uint8:
        # Not all versions of DLPack know 8-bit floats and bool.
        array = jax.lax.bitcast_convert_type(_as_numbers(array), jnp.uint8)
    return DeviceBytes(jax.block_until_ready(array))


def _as_numbers(array: jax.Array) -> jax.Array:
    return array.astype(jnp.uint8) if array.dtype == jnp.bool_ else array


def _is_row_major(array: jax.Array) -> bool:
    form: Any = getattr(array, "format", None)
    layout = form and form.layout
    return layout is None or tuple(layout.major_to_minor) == tuple(range(array.ndim))
