"""Bytes of a shard of an array, held until they are saved."""

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from jax_cxl._job import platforms
from jax_cxl._store.memory import checksum

if TYPE_CHECKING:
    import jax

# Fewer small arrays are not worth the time to compile a program that joins them.
FEWEST_JOINED = 250
_HOST_MEMORY = ("pinned_host", "unpinned_host")


class HostBytes:
    """Bytes of an array in this host's memory.

    A view of a buffer of XLA's CPU devices keeps XLA from giving the buffer to a program that may
    overwrite it: such a program gets another buffer, with a copy. So the bytes stay as they are.
    """

    # There may be many of these objects, one for each small array.
    __slots__ = ("_array", "_end", "_start")

    def __init__(self, array: Any, start: int, end: int):
        """Holds some bytes, in row-major order, of an array whose values have been computed."""
        held = np.asarray(array)
        self._array = held if held.flags.c_contiguous else np.ascontiguousarray(held)
        self._start, self._end = start, end

    def read(self, start: int, end: int) -> np.ndarray:
        """Returns a view of some of the bytes."""
        flat = self._array.reshape(-1).view(np.uint8)
        return flat[self._start : self._end][start:end]

    def checksum(self) -> int:
        """Returns the checksum of all of the bytes."""
        return checksum.of(self.read(0, self._end - self._start))


class DeviceBytes:
    """Bytes of an array in the memory of the GPU `ordinal` of this process."""

    def __init__(self, array: "jax.Array", start: int = 0, view: Any = None):
        """Holds the bytes of an array, which may not be computed yet, from `start` on.

        While `view` lives, a program to which the array is donated fails.
        """
        (device,) = array.devices()
        self.ordinal: int = device.local_hardware_id
        self._array, self._start, self._view = array, start, view

    def address(self) -> int:
        """Waits until the values have been computed; returns the address of the first byte."""
        array = self._array.block_until_ready()
        address: int = array.unsafe_buffer_pointer()
        return address + self._start


def view(array: Any) -> np.ndarray:
    """Returns a view of an array on one device of this host, once its values have been computed.

    The view keeps the values (`HostBytes`). A NumPy array is copied, because it may change.
    """
    return np.array(array) if isinstance(array, np.ndarray) else np.asarray(array)


Range = tuple[Any, int, int]


def hold(ranges: Sequence[Range], copy: bool, owned: bool = False) -> list[HostBytes | DeviceBytes]:
    """Holds some bytes of arrays.

    Args:
      ranges: each array (NumPy, or JAX on one device) with the first byte in row-major order and
        the byte after the last one. The values need not have been computed.
      copy: whether to copy bytes that lie in a GPU's memory. Without a copy, a program to which
        the array is donated fails as long as the object that this function returns for it lives.
      owned: whether only the caller has the arrays, so that nobody donates them. If this is False
        and no copy is taken, this function waits until values on GPUs have been computed.
    """
    held: list[HostBytes | DeviceBytes | None] = []
    to_copy: dict[Any, list[int]] = {}
    for number, (array, start, end) in enumerate(ranges):
        if not is_on_gpu(array):
            held.append(HostBytes(view(array), start, end))
        elif copy or not _is_row_major(array):
            to_copy.setdefault(frozenset(array.devices()), []).append(number)
            held.append(None)
        else:
            held.append(DeviceBytes(array, start, None if owned else array.__dlpack__()))
    # One program for each GPU: to start a program for each array would take longer than to copy.
    for numbers in to_copy.values():
        chosen = [ranges[number] for number in numbers]
        from jax_cxl._store.writing import gpu_programs

        copies = gpu_programs.copied(
            [array for array, _, _ in chosen],
            tuple((start // x.dtype.itemsize, end // x.dtype.itemsize) for x, start, end in chosen),
        )
        for number, made in zip(numbers, copies, strict=True):
            held[number] = DeviceBytes(made)
    return cast(list[HostBytes | DeviceBytes], held)


def hold_sums(arrays: "Sequence[jax.Array]") -> list[Callable[[], int]]:
    """Returns functions that return the checksums of arrays later, even if these are donated.

    Arrays with equal bytes have equal checksums if their devices are of the same kind. (CPUs and
    GPUs compute different checksums.)
    """
    held: list[Callable[[], int] | None] = []
    on_gpu: dict[Any, list[int]] = {}
    for number, array in enumerate(arrays):
        if is_on_gpu(array):
            on_gpu.setdefault(frozenset(array.devices()), []).append(number)
            held.append(None)
        else:
            held.append(HostBytes(array, 0, array.size * array.dtype.itemsize).checksum)
    for numbers in on_gpu.values():
        from jax_cxl._store.writing import gpu_programs

        for number, words in zip(
            numbers, gpu_programs.sums([arrays[n] for n in numbers]), strict=True
        ):
            held[number] = functools.partial(sum_of, words)
    return cast(list[Callable[[], int]], held)


def sum_of(words: "jax.Array") -> int:
    """Waits for the two words of a checksum that a GPU computes; returns the checksum."""
    low, high = np.asarray(words)
    return int(high) << 32 | int(low)


def is_on_gpu(array: Any) -> bool:
    """Whether a JAX array, or what describes one, is in the memory of GPUs."""
    if not hasattr(array, "sharding") or platforms.only_cpus():
        return False
    import jax

    # Elements of less than a byte are packed on the GPU, and take a byte each on the host. Such an
    # array is read by JAX instead, which unpacks it.
    return _is_gpu_memory(array.sharding) and jax.dtypes.itemsize_bits(array.dtype) >= 8


@functools.lru_cache(1024)
def _is_gpu_memory(sharding: Any) -> bool:
    device = next(iter(sharding.device_set))
    return device.platform != "cpu" and sharding.memory_kind not in _HOST_MEMORY


def _is_row_major(array: "jax.Array") -> bool:
    form: Any = getattr(array, "format", None)
    layout = form and form.layout
    return layout is None or tuple(layout.major_to_minor) == tuple(range(array.ndim))
