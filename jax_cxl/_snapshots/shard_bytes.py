"""Bytes of a shard of an array, held until they are saved."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


class HostBytes:
    """Bytes of an array in this host's memory.

    A view of a buffer of XLA's CPU devices keeps XLA from giving the buffer to a program that may
    overwrite it: such a program gets another buffer, with a copy. So the bytes stay as they are.
    """

    def __init__(self, array: Any, start: int, end: int):
        """Holds some bytes, in row-major order, of an array whose values have been computed."""
        flat = np.ascontiguousarray(array).reshape(-1)
        self._bytes = flat.view(np.uint8)[start:end]

    def read(self, start: int, end: int) -> np.ndarray:
        """Returns a view of some of the bytes."""
        return self._bytes[start:end]


class DeviceBytes:
    """Bytes of an array in the memory of a GPU.

    Attributes:
      ordinal: ordinal of the GPU in this process.
    """

    def __init__(self, array: jax.Array, start: int, end: int, copy: bool):
        """Holds some bytes, in row-major order, of an array on one GPU.

        Args:
          array: the array. Its values need not have been computed.
          start: first byte.
          end: byte after the last byte.
          copy: whether to take a copy in the GPU's memory. Otherwise a program to which the array
            is donated fails while this object lives.
        """
        (device,) = array.devices()
        self.ordinal: int = device.local_hardware_id
        size = array.dtype.itemsize
        if copy:
            self._array = _copied(array, start // size, end // size)
            self._start = 0
        else:
            self._array, self._start = array, start
            self._held = array.__dlpack__()

    def address(self) -> int:
        """Waits until the values have been computed; returns the address of the first byte."""
        array = self._array.block_until_ready()
        address: int = array.unsafe_buffer_pointer()
        return address + self._start


def hold(array: Any, start: int, end: int, copy: bool) -> HostBytes | DeviceBytes:
    """Holds some bytes of an array of NumPy, or of an array of JAX on one device.

    Args:
      array: the array.
      start: first byte, in row-major order.
      end: byte after the last byte.
      copy: as for `DeviceBytes`.
    """
    if not isinstance(array, jax.Array):
        return HostBytes(np.array(array), start, end)  # A copy: NumPy's arrays may change.
    (device,) = array.devices()
    # Elements of less than a byte are packed on the GPU, and take a byte each on the host.
    if device.platform == "cpu" or jax.dtypes.itemsize_bits(array.dtype) < 8:
        return HostBytes(array, start, end)
    if not copy and not _is_row_major(array):
        copy = True
    return DeviceBytes(array, start, end, copy)


@functools.partial(jax.jit, static_argnums=(1, 2))
def _copied(array: jax.Array, start: int, end: int) -> jax.Array:
    """Returns a copy of some elements, in row-major order."""
    return jnp.copy(array.reshape(-1)[start:end])


def _is_row_major(array: jax.Array) -> bool:
    form: Any = getattr(array, "format", None)
    layout = form and form.layout
    return layout is None or tuple(layout.major_to_minor) == tuple(range(array.ndim))
