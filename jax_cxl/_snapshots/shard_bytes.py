"""Bytes of a shard of an array, held until they are saved."""

import functools
from collections.abc import Sequence
from typing import Any, cast

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

    def __init__(self, array: jax.Array, start: int = 0, view: Any = None):
        """Holds the bytes of an array on one GPU, in row-major order, from a byte on.

        Args:
          array: the array. Its values need not have been computed.
          start: first byte.
          view: a view of the array. While it lives, a program to which the array is donated fails.
        """
        (device,) = array.devices()
        self.ordinal: int = device.local_hardware_id
        self._array, self._start, self._view = array, start, view

    def address(self) -> int:
        """Waits until the values have been computed; returns the address of the first byte."""
        array = self._array.block_until_ready()
        address: int = array.unsafe_buffer_pointer()
        return address + self._start


Range = tuple[Any, int, int]


def hold(ranges: Sequence[Range], copy: bool) -> list[HostBytes | DeviceBytes]:
    """Holds some bytes of arrays.

    Args:
      ranges: of each array, which is an array of NumPy or of JAX on one device, the first byte in
        row-major order and the byte after the last one. The values need not have been computed.
      copy: whether to take a copy of what is in a GPU's memory. Otherwise a program to which the
        array is donated fails while the object in the result lives.
    """
    held: list[HostBytes | DeviceBytes | None] = []
    to_copy: dict[Any, list[int]] = {}
    for number, (array, start, end) in enumerate(ranges):
        if not _is_on_gpu(array):
            # Arrays of NumPy may change, so this copies them.
            array = array if isinstance(array, jax.Array) else np.array(array)
            held.append(HostBytes(array, start, end))
        elif copy or not _is_row_major(array):
            (device,) = array.devices()
            to_copy.setdefault(device, []).append(number)
            held.append(None)
        else:
            held.append(DeviceBytes(array, start, array.__dlpack__()))
    # One program for each GPU: a program for each array would take longer to start than the copies.
    for numbers in to_copy.values():
        chosen = [ranges[number] for number in numbers]
        copies = _copied(
            [array for array, _, _ in chosen],
            tuple((start // x.dtype.itemsize, end // x.dtype.itemsize) for x, start, end in chosen),
        )
        for number, made in zip(numbers, copies, strict=True):
            held[number] = DeviceBytes(made)
    return cast(list[HostBytes | DeviceBytes], held)


@functools.partial(jax.jit, static_argnums=1)
def _copied(arrays: list[jax.Array], ranges: tuple[tuple[int, int], ...]) -> list[jax.Array]:
    """Returns copies of some elements of each array, in row-major order."""
    return [
        jnp.copy(array.reshape(-1)[start:end])
        for array, (start, end) in zip(arrays, ranges, strict=True)
    ]


def _is_on_gpu(array: Any) -> bool:
    if not isinstance(array, jax.Array):
        return False
    (device,) = array.devices()
    # Elements of less than a byte are packed on the GPU, and take a byte each on the host.
    return device.platform != "cpu" and jax.dtypes.itemsize_bits(array.dtype) >= 8


def _is_row_major(array: jax.Array) -> bool:
    form: Any = getattr(array, "format", None)
    layout = form and form.layout
    return layout is None or tuple(layout.major_to_minor) == tuple(range(array.ndim))
