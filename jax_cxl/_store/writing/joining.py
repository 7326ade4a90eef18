"""Programs that join many small arrays on CPUs.

A snapshot needs the bytes of each array on each device. Getting a device's array from JAX, and
NumPy's view of it, takes about 5 us if the array is on one device. If the array is on several
devices, this takes three times as long for each device. A program that joins a thousand arrays
takes about 1 us for each array. The arrays may be donated afterwards, like those that any other
program has read.
"""

import concurrent.futures
import dataclasses
import functools
import math
import os
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
      layouts: the layout that the program expects, by number of the leaf. Arrays that can have only
        one layout are left out.
      parts: for each device, a sequence with an entry for each array: the number of the array's
        shard on this device, and the size of the shard in bytes.
    """

    leaves: Sequence[int]
    layouts: Mapping[int, Any]
    parts: Sequence[Sequence[tuple[int, int]]]
    program: Any

    def start(self, arrays: Mapping[int, Any]) -> Sequence[jax.Array]:
        """Starts the program; returns the joined arrays of each device, () if it does not fit."""
        # XLA does not check that the arrays have the layouts for which the program was compiled.
        if any(_compat.arrays.layout_of(arrays[leaf]) != of for leaf, of in self.layouts.items()):
            return ()
        return _compat.programs.run(self.program, [arrays[leaf] for leaf in self.leaves])

    def split(self, joined: Sequence[jax.Array], views: list[Any]) -> None:
        """Waits for the joined arrays; puts views of the shards into a list, at their numbers."""
        for array, parts in zip(joined, self.parts, strict=True):
            data, end = np.asarray(array), 0
            for number, size in parts:
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
                leaf: (x.sharding, x.aval) for leaf, x in arrays.items() if hasattr(x, "sharding")
            }
            self._groups = _thread().submit(_groups, forms, shards)

    def join(self, arrays: Mapping[int, Any], views: list[Any]) -> int:
        """Puts views of the shards into a list, once programs are compiled; returns how many."""
        groups = self._groups
        if groups is None or not groups.done() or groups.exception():
            return 0
        started = [(group, group.start(arrays)) for group in groups.result()]
        joined = [(group, of_devices) for group, of_devices in started if of_devices]
        for group, of_devices in joined:
            group.split(of_devices, views)
        return sum(len(group.leaves) for group, _ in joined)


def _groups(forms: Mapping[int, Any], shards: Sequence[tuple[int, int]]) -> list[Group]:
    """Chooses small arrays, and compiles programs that join them."""
    numbers: dict[int, list[int]] = {}
    for number, (leaf, _) in sorted(enumerate(shards), key=lambda shard: shard[1]):
        numbers.setdefault(leaf, []).append(number)
    found: dict[tuple[jax.Device, ...], list[tuple[int, int]]] = {}
    for leaf, (sharding, aval) in forms.items():
        devices, size = _on_devices(sharding, aval.shape, aval.dtype)
        if 0 < size <= _MOST_BYTES and len(devices) == len(numbers.get(leaf, ())):
            found.setdefault(devices, []).append((size, leaf))
    program = functools.cache(_compiled)
    layouts = functools.cache(_usual_layout)
    made = []
    for devices, members in found.items():
        if len(members) < shard_bytes.FEWEST_JOINED:
            continue
        members.sort()  # Groups of arrays of the same sizes share a program.
        for start in range(0, len(members), _TOGETHER):
            sizes, leaves = zip(*members[start : start + _TOGETHER], strict=True)
            of_devices = zip(*(numbers[leaf] for leaf in leaves), strict=True)
            ranks = {leaf: len(forms[leaf][1].shape) for leaf in leaves}
            made.append(
                Group(
                    leaves,
                    {leaf: layouts(rank, devices) for leaf, rank in ranks.items() if rank > 1},
                    [tuple(zip(own, sizes, strict=True)) for own in of_devices],
                    program(sizes, devices),
                )
            )
    return made


@functools.lru_cache(1024)
def _on_devices(
    sharding: jax.sharding.Sharding, shape: tuple[int, ...], dtype: Any
) -> tuple[tuple[jax.Device, ...], int]:
    """Returns the devices of this process, in the order of JAX, and the bytes on each of them."""
    devices = tuple(sharding.addressable_devices_indices_map(shape))
    # Arrays whose elements are smaller than a byte are not joined, because XLA and NumPy store them
    # differently.
    item_bytes = dtype.itemsize if jax.dtypes.itemsize_bits(dtype) >= 8 else 0
    return devices, math.prod(sharding.shard_shape(shape)) * item_bytes


def _usual_layout(rank: int, devices: Sequence[jax.Device]) -> Any:
    """Returns the row-major layout of arrays with this many dimensions."""
    return _compat.arrays.layout_of(jax.device_put(np.zeros((1,) * rank, np.uint8), devices[0]))


def _compiled(sizes: Sequence[int], devices: Sequence[jax.Device]) -> Any:
    """Compiles a program that joins an array of each of these sizes, on each device."""
    _register()
    names = [f"%a{number}" for number in range(len(sizes))]
    types = [f"tensor<{size}xui8>" for size in sizes]
    named = ", ".join(f"{name}: {type_}" for name, type_ in zip(names, types, strict=True))
    result = f"tensor<{sum(sizes)}xui8>"
    text = f"""
module @{_TARGET} {{
  func.func public @main({named}) -> {result} {{
    %joined = stablehlo.custom_call @{_TARGET}({", ".join(names)}) {{api_version = 4 : i32}}
        : ({", ".join(types)}) -> {result}
    return %joined : {result}
  }}
}}"""
    return _compat.programs.compile_for_each(text, devices)


@functools.cache
def _register() -> None:
    stages = {"execute": _core.JOIN_HANDLER}
    jax.ffi.register_ffi_target(_TARGET, stages, platform="cpu")


@functools.cache
def _thread() -> concurrent.futures.ThreadPoolExecutor:
    return concurrent.futures.ThreadPoolExecutor(1, "jax_cxl store")


os.register_at_fork(after_in_child=_thread.cache_clear)  # A child does not have the thread.
