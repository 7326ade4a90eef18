"""Programs that join many small arrays on CPUs.

A snapshot needs the bytes of each array on each device. Getting a device's array from JAX, and
NumPy's view of it, takes about 5 us if the array is on one device. If the array is on several
devices, this takes three times as long for each device. A program that joins a thousand arrays
takes about 1 us for each array. The arrays may be donated afterwards, like those that any other
program has read.
"""

import concurrent.futures
import contextlib
import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jax_cxl import _compat, _core
from jax_cxl._job import platforms
from jax_cxl._store.writing import shard_bytes

_MOST_BYTES = 16384  # of an array on a device. To copy more takes longer than to view it.
_TOGETHER = 1000  # The time to compile a program grows faster than the number of its arrays.
_TARGET = "jax_cxl_join"


@dataclasses.dataclass(frozen=True)
class Group:
    """Arrays that one program joins.

    Attributes:
      sizes: the size in bytes of each array's shards.
      numbers: for each device, the numbers of the arrays' shards on this device.
    """

    leaves: Sequence[int]
    sizes: Sequence[int]
    numbers: Sequence[Sequence[int]]
    program: Any

    def split(self, joined: jax.Array, views: list[Any]) -> None:
        """Waits for the joined array; puts views of the shards into a list, at their numbers."""
        of_devices = _compat.arrays.of_devices(joined)
        for array, numbers in zip(of_devices, self.numbers, strict=True):
            data, end = np.asarray(array), 0
            for number, size in zip(numbers, self.sizes, strict=True):
                start, end = end, end + size
                views[number] = data[start:end]


class Joiner:
    """Joins the small arrays of trees that have the same description."""

    def __init__(self, arrays: Mapping[int, Any], shards: Sequence[tuple[int, int]]):
        """Begins to compile the programs for arrays like these, by the numbers of their leaves.

        `shards` has the leaf and the position of the device of each shard that is needed.
        """
        self._groups: concurrent.futures.Future[list[Group]] | None = None
        if platforms.only_cpus():
            # Keep only what describes the arrays, because the arrays themselves take memory.
            forms = {
                leaf: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)
                for leaf, x in arrays.items()
                if hasattr(x, "sharding")
            }
            thread = concurrent.futures.ThreadPoolExecutor(1, "jax_cxl store")
            self._groups = thread.submit(_groups, forms, shards)
            thread.shutdown(wait=False)

    def join(self, arrays: Mapping[int, Any], views: list[Any]) -> int:
        """Puts views of the shards into a list, once programs are compiled; returns how many."""
        groups = self._groups
        if groups is None or not groups.done() or groups.exception():
            return 0
        started = []
        for group in groups.result():
            with contextlib.suppress(ValueError):  # An array has an unusual layout.
                started.append((group, group.program(*(arrays[leaf] for leaf in group.leaves))))
        for group, joined in started:
            group.split(joined, views)
        return sum(len(group.leaves) for group, _ in started)


def _groups(
    forms: Mapping[int, jax.ShapeDtypeStruct], shards: Sequence[tuple[int, int]]
) -> list[Group]:
    """Chooses small arrays, and compiles programs that join them."""
    numbers: dict[int, list[int]] = {}
    for number, (leaf, _) in sorted(enumerate(shards), key=lambda shard: shard[1]):
        numbers.setdefault(leaf, []).append(number)
    found: dict[Any, dict[jax.ShapeDtypeStruct, list[int]]] = {}
    for leaf, form in forms.items():
        size, devices, count = _on_devices(form)
        if 0 < size <= _MOST_BYTES and count == len(numbers.get(leaf, ())):
            found.setdefault(devices, {}).setdefault(form, []).append(leaf)
    program = functools.cache(_compiled)
    made = []
    for devices, of_form in found.items():
        members = [leaf for same in of_form.values() for leaf in same]
        if len(members) < shard_bytes.FEWEST_JOINED:
            continue
        for start in range(0, len(members), _TOGETHER):
            leaves = members[start : start + _TOGETHER]
            some = tuple(forms[leaf] for leaf in leaves)
            sizes = [_on_devices(form)[0] for form in some]
            of_devices = list(zip(*(numbers[leaf] for leaf in leaves), strict=True))
            made.append(Group(leaves, sizes, of_devices, program(devices, some)))
    return made


@functools.lru_cache(1024)
def _on_devices(form: jax.ShapeDtypeStruct) -> tuple[int, Any, int]:
    """Returns an array's bytes on each device; its mesh, or its device; this process's devices."""
    sharding, named = form.sharding, isinstance(form.sharding, jax.NamedSharding)
    # Arrays whose elements are smaller than a byte are not joined, because XLA and NumPy store them
    # differently. Nor are those with a sharding over several devices that names no mesh.
    joins = jax.dtypes.itemsize_bits(form.dtype) >= 8 and (named or sharding.num_devices == 1)
    size = math.prod(sharding.shard_shape(form.shape)) * form.dtype.itemsize * joins
    return size, sharding.mesh if named else sharding, len(sharding.addressable_devices)


def _compiled(devices: Any, forms: Sequence[jax.ShapeDtypeStruct]) -> Any:
    """Compiles a program that joins the parts of arrays of these forms on each device."""
    _register()

    def join(*arrays: jax.Array) -> jax.Array:
        result = jax.ShapeDtypeStruct((sum(x.nbytes for x in arrays),), np.uint8)
        joined: jax.Array = jax.ffi.ffi_call(_TARGET, result)(*arrays)
        return joined

    if isinstance(devices, jax.sharding.Mesh):
        specs = tuple(form.sharding.spec for form in forms)
        all_axes = jax.P(devices.axis_names)
        join = jax.shard_map(
            join, mesh=devices, in_specs=specs, out_specs=all_axes, check_vma=False
        )
    return jax.jit(join).lower(*forms).compile()


@functools.cache
def _register() -> None:
    stages = {"execute": _core.JOIN_HANDLER}
    jax.ffi.register_ffi_target(_TARGET, stages, platform="cpu")
