"""Copies arrays of a store to GPUs by compiled programs, so that Python makes few calls.

Programs may use the copies before the checksums of the copies have been compared. So programs must
not donate the copies.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax

from jax_cxl import _compat
from jax_cxl._store.reading import on_devices, on_gpus
from jax_cxl._store.reading.restoring import Reader
from jax_cxl._store.trees import leaves
from jax_cxl._tier.arrays import Spec


@dataclasses.dataclass(frozen=True)
class Source:
    """An array in `pinned_host` memory, that of the store itself, and what GPUs copy of it."""

    array: jax.Array
    copies: Sequence[on_gpus.Copy]


def may_copy(sharding: jax.sharding.Sharding) -> bool:
    """Whether arrays with a sharding are on GPUs, which may copy them."""
    kind = sharding.memory_kind
    return any(
        on_gpus.is_gpu(jax.sharding.SingleDeviceSharding(device, memory_kind=kind))
        for device in sharding.addressable_devices
    )


def find(reader: Reader, spec: Spec) -> Source | None:
    """Finds how GPUs copy an array of a version; None if the host has to read or assemble it."""
    # A name has a few areas, and versions of the same form have their arrays at the same places in
    # an area. So all versions of this form that are in one area share the result.
    key = reader.stripes[0].offset(0), spec
    if key not in reader.structure.found:
        reader.structure.found[key] = _find(reader, spec)
    found: Source | None = reader.structure.found[key]
    return found


def _find(reader: Reader, spec: Spec) -> Source | None:
    leaf = reader.leaves.get(spec.name)
    if leaf is None or leaf.key or leaf.shape != spec.shape:
        return None
    if leaves.dtype_of(leaf.dtype) != spec.dtype:
        return None
    place = on_devices.place_of(spec.sharding, spec.shape, jax.process_index())
    copies = [on_gpus.find(reader, leaf, index, where) for index, where in place.shards]
    parts = []
    for copy in copies:
        if copy is None or copy.plan is not None:
            return None
        parts += copy.sources()
    if not parts:
        return None
    sharding = spec.sharding.with_memory_kind(str(parts[0].sharding.memory_kind))
    array = jax.make_array_from_single_device_arrays(spec.shape, sharding, parts)
    return Source(array, [copy for copy in copies if copy is not None])


def start(sources: Sequence[Source], specs: Sequence[Spec]) -> list[jax.Array]:
    """Starts to copy arrays to their GPUs; returns the copies."""
    made = _program(tuple(spec.sharding for spec in specs))([each.array for each in sources])
    return [
        _compat.arrays.like(x, spec.weak_type, spec.committed)
        for x, spec in zip(made, specs, strict=True)
    ]


def check(reader: Reader, sources: Sequence[Source], made: Sequence[jax.Array]) -> None:
    """Waits for copies, and compares their checksums."""
    parts = [[part] for x in made for part in _compat.arrays.of_devices(x)]
    on_gpus.check(reader, [copy for each in sources for copy in each.copies], parts)


@functools.lru_cache(256)
def _program(shardings: tuple[Any, ...]) -> Any:
    def copy(arrays: list[jax.Array]) -> list[jax.Array]:
        return [jax.device_put(x, to) for x, to in zip(arrays, targets, strict=True)]

    kinds = [next(iter(each.device_set)).default_memory().kind for each in shardings]
    targets = [each.with_memory_kind(kind) for each, kind in zip(shardings, kinds, strict=True)]
    return jax.jit(copy)
