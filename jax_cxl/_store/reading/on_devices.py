"""Puts the leaves of a version into arrays of JAX."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jax_cxl import _compat
from jax_cxl._store.reading import on_gpus
from jax_cxl._store.reading.sources import MisfitError, Source, check_fits
from jax_cxl._store.trees import leaves


class Building:
    """The data that the leaves of a tree share, and the parts that GPUs copy."""

    def __init__(self) -> None:
        self.copies: list[on_gpus.Copy] = []
        self._avals: dict[Any, Any] = {}
        self._in_jax: dict[np.dtype, bool] = {}

    def _has(self, dtype: np.dtype) -> bool:
        """Whether JAX has a dtype. It has 64-bit dtypes only if the program asks for them."""
        if dtype not in self._in_jax:
            self._in_jax[dtype] = jax.dtypes.canonicalize_dtype(dtype) == dtype
        return self._in_jax[dtype]

    def begin(self, like: Any, source: Source) -> Callable[[], jax.Array]:
        """Reads a leaf. Returns a function that makes an array like `like`, after `run`."""
        leaf = source.leaf
        key = leaf.key
        check_fits(leaf, _key_data(leaf, like) if key else like)
        if not key and not self._has(like.dtype):
            raise MisfitError(
                f"{leaf.name} is {leaf.dtype}, which JAX has only with jax_enable_x64; set it, or"
                " ask for a NumPy array"
            )
        same = _unchanged(source, like)
        if same is not None:
            return lambda: same
        make = _on_devices(like, leaf, source, self)
        return lambda: jax.random.wrap_key_data(make(), impl=key) if key else make()

    def run(self) -> None:
        """Runs the copies of GPUs."""
        on_gpus.run(self.copies)

    def put(
        self,
        leaf: leaves.Leaf,
        to: "Place",
        parts: Sequence[Any],
        weak_type: bool,
        committed: bool,
    ) -> jax.Array:
        """Returns an array, made from its part for each device of this process."""
        form = leaf.shape, leaf.dtype, to.sharding, weak_type
        aval = self._avals.get(form)
        if aval is not None and not any(isinstance(part, on_gpus.Copy) for part in parts):
            return _compat.arrays.put(aval, to.sharding, parts, to.devices, committed)
        # JAX makes and checks the first array of each form. Later arrays skip the checks.
        arrays = [
            part.made if isinstance(part, on_gpus.Copy) else _on_device(part, where)
            for part, (_, where) in zip(parts, to.shards, strict=True)
        ]
        dtype = leaves.dtype_of(leaf.dtype)
        made: jax.Array = jax.make_array_from_single_device_arrays(
            leaf.shape, to.sharding, arrays, dtype=dtype
        )
        made = _compat.arrays.like(made, weak_type, committed)
        if parts:
            self._avals[form] = made.aval
        return made

    @functools.cached_property
    def default_sharding(self) -> jax.sharding.Sharding:
        """The default device of JAX, as a sharding."""
        return jax.device_put(np.uint8(0)).sharding


def _on_device(part: np.ndarray, where: jax.sharding.SingleDeviceSharding) -> jax.Array:
    aval = jax.core.ShapedArray(part.shape, part.dtype)
    return _compat.arrays.put(aval, where, [part], list(where.device_set), True)


def _parts(
    source: Source, to: "Place", copies: list[on_gpus.Copy]
) -> list[np.ndarray | on_gpus.Copy]:
    """Returns the parts for this process's devices; adds those of GPUs to `copies`, too."""
    found: dict[leaves.Index, np.ndarray] = {}
    parts: list[np.ndarray | on_gpus.Copy] = []
    for index, where in to.shards:
        copy = on_gpus.find(source.reader, source.leaf, index, where)
        if copy is not None:
            copies.append(copy)
        elif index not in found:
            found[index] = source.part(index, to.of_this_process)
        parts.append(copy or found[index])
    return parts


def _unchanged(source: Source, like: Any) -> jax.Array | None:
    """Returns the previous array if it fits `like` and has not changed, else None."""
    have = None if source.previous is None else source.previous.get(source.name)
    if not isinstance(have, jax.Array) or have.is_deleted():
        return None
    if type(have) is not type(like) and not isinstance(like, jax.ShapeDtypeStruct):
        return None
    wanted_sharding = getattr(like, "sharding", None)
    fits = (have.shape, have.dtype) == (like.shape, like.dtype)
    fits &= wanted_sharding in (None, have.sharding)
    weak = bool(getattr(like, "weak_type", False)) == bool(getattr(have, "weak_type", False))
    return have if fits and weak and source.reader.is_unchanged(source.leaf) else None


def _key_data(leaf: leaves.Leaf, like: Any) -> Any:
    """Returns shape and dtype of the integers that make up the keys of `like`."""
    impl = str(jax.random.key_impl(like)) if isinstance(like, jax.Array) else None
    expected = jax.random.key(0, impl=leaf.key).dtype
    if like.dtype != expected or impl not in (None, leaf.key):
        raise MisfitError(
            f"{leaf.name} was saved with keys of {leaf.key}, and `like` has keys of"
            f" {impl or like.dtype}: change `like`"
        )
    return jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(like.shape, like.dtype))


def _on_devices(like: Any, leaf: leaves.Leaf, source: Source, building: Building) -> Any:
    """Reads the parts of an array. Returns a function that makes the array from them."""
    sharding: Any = getattr(like, "sharding", None)
    weak_type = bool(getattr(like, "weak_type", False))
    committed = sharding is not None and bool(getattr(like, "committed", True))
    to = place_of(sharding or building.default_sharding, leaf.shape, source.own)
    parts = _parts(source, to, building.copies)
    return lambda: building.put(leaf, to, parts, weak_type, committed)


@dataclasses.dataclass(frozen=True)
class Place:
    """Where an array goes.

    Attributes:
      shards: for each device of this process, the index of its part, and the device.
      of_this_process: whether all devices of the array belong to this process.
    """

    sharding: Any
    shards: Sequence[tuple[leaves.Index, jax.sharding.SingleDeviceSharding]]
    devices: Sequence[jax.Device]
    of_this_process: bool


@functools.lru_cache(1024)
def place_of(sharding: Any, shape: tuple[int, ...], own: int) -> Place:
    """Returns where an array goes in this process, whose index is `own`."""
    shards = []
    indices = sharding.addressable_devices_indices_map(shape)
    for device, slices in indices.items():
        index = leaves.index_of(slices or (slice(None),) * len(shape), shape)
        where = jax.sharding.SingleDeviceSharding(device, memory_kind=sharding.memory_kind)
        shards.append((index, where))
    of_this_process = all(device.process_index == own for device in sharding.device_set)
    return Place(sharding, shards, list(indices), of_this_process)
