"""Reads arrays into the memory of GPUs: the GPUs copy from the pool, without a copy of the host."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_cxl import _compat
from jax_cxl._store.memory import dlpack, layout
from jax_cxl._store.reading.restoring import Reader
from jax_cxl._store.trees import leaves, place
from jax_cxl._tier.arrays import Spec

_GPU = True  # Tests on CPUs change it.


def can_read(reader: Reader, spec: Spec) -> bool:
    """Returns whether the shards of an array are on GPUs and have been written as they are."""
    leaf = reader.leaves.get(spec.name)
    if leaf is None or leaf.local or leaf.key:
        return False
    device: Any = next(iter(spec.sharding.device_set))
    if device.platform == "cpu" and _GPU:
        return False
    if (leaf.shape, leaf.dtype) != (spec.shape, np.dtype(spec.dtype).name):
        return False
    known = {shard.index for shard in leaf.shards}
    wanted = set(_indices(spec).values())
    return wanted <= known and dlpack.code_of(np.dtype(spec.dtype)) is not None


def read(reader: Reader, specs: Sequence[Spec]) -> list[jax.Array]:
    """Returns arrays for which `can_read` is true.

    Raises:
      StoreError: data are damaged.
    """
    if not specs:
        return []
    if _GPU:
        _ = reader.stripes[0].section.devices.copies  # Registers the memory with CUDA, once.
    pieces: list[Any] = []
    devices: list[Any] = []
    plan = []
    for spec in specs:
        leaf = reader.leaves[spec.name]
        shards = []
        for device, index in _indices(spec).items():
            number = next(n for n, shard in enumerate(leaf.shards) if shard.index == index)
            parts = [part for part in reader.parts(leaf) if part.shard == number]
            found = [piece for part in parts for piece in _pieces(reader, part, leaf.itemsize)]
            shape = leaf.shards[number].shape
            shards.append((len(pieces), len(found), shape))
            if len(found) == 1:
                found = [(found[0][0], shape)]
            pieces += [_view(reader, at, of, np.dtype(spec.dtype)) for at, of in found]
            devices += [jax.sharding.SingleDeviceSharding(device)] * len(found)
        plan.append((spec, shards))
    moved = jax.device_put(pieces, devices)
    made = []
    for spec, shards in plan:
        arrays = [_joined(moved[first : first + n], shape, spec) for first, n, shape in shards]
        array = jax.make_array_from_single_device_arrays(
            spec.shape, spec.sharding, arrays, dtype=spec.dtype
        )
        made.append(_compat.array_like(array, False, spec.committed))
    return jax.block_until_ready(made)


def _indices(spec: Spec) -> dict[jax.Device, leaves.Index]:
    found = spec.sharding.addressable_devices_indices_map(spec.shape)
    whole = (slice(None),) * len(spec.shape)
    return {device: leaves.index_of(at or whole, spec.shape) for device, at in found.items()}


def _pieces(
    reader: Reader, part: place.Part, itemsize: int
) -> Iterator[tuple[tuple[int, int], tuple[int, ...]]]:
    """Checks the blocks of a part. Yields its pieces: device and offset, and shape."""
    start, end = part.offset, part.offset + part.end - part.start
    blocks = range(start // layout.BLOCK_BYTES, layout.blocks(end))
    # This also makes the data of other hosts visible to this host.
    reader.check_blocks(part.writer, blocks)
    first = blocks.start
    for device, offset, count in reader.stripes[part.writer].runs(blocks):
        begin = first * layout.BLOCK_BYTES
        first += count
        low, high = max(start, begin), min(end, first * layout.BLOCK_BYTES)
        yield (device, offset + low - begin), ((high - low) // itemsize,)


def _view(reader: Reader, at: tuple[int, int], shape: tuple[int, ...], dtype: np.dtype) -> Any:
    core = reader.stripes[0].section.devices.core
    return jax.dlpack.from_dlpack(dlpack.array(core, at, shape, dtype, _GPU, reader))


def _joined(pieces: Sequence[Any], shape: tuple[int, ...], spec: Spec) -> Any:
    if not pieces:
        return jnp.zeros(shape, spec.dtype, device=next(iter(spec.sharding.addressable_devices)))
    if len(pieces) == 1:
        return pieces[0]
    assert math.prod(shape) == sum(piece.size for piece in pieces)
    return _join(list(pieces), shape)


_join = jax.jit(lambda pieces, shape: jnp.concatenate(pieces).reshape(shape), static_argnums=1)
