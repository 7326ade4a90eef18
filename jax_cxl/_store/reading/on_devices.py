"""Puts the leaves of a version into arrays of JAX."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jax_cxl import _compat
from jax_cxl._store.reading import on_gpus
from jax_cxl._store.reading.restoring import MisfitError
from jax_cxl._store.reading.version import Source, check_fits
from jax_cxl._store.trees import flatten, leaves


class Building:
    """Makes arrays of JAX from leaves of a version."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._copies: list[on_gpus.Copy] = []
        self._avals: dict[Any, Any] = {}

    def begin(self, like: Any, leaf: leaves.Leaf) -> Callable[[], jax.Array]:
        """Reads a leaf. Returns a function that makes an array like `like`, after `run`."""
        key = leaf.key
        check_fits(leaf, _key_data(leaf, like) if key else like)
        # JAX has 64-bit dtypes only if the program asks for them.
        if not key and jax.dtypes.canonicalize_dtype(like.dtype) != like.dtype:
            raise MisfitError(
                f"{leaf.name} is {leaf.dtype}, which JAX has only with jax_enable_x64; set it, or"
                " ask for a NumPy array"
            )
        sharding = getattr(like, "sharding", None)
        weak_type = bool(getattr(like, "weak_type", False))
        same = self._unchanged(like, leaf, sharding, weak_type)
        if same is not None:
            return lambda: same
        committed = sharding is not None and bool(getattr(like, "committed", True))
        to = place_of(sharding or self._default_sharding, leaf.shape, self._source.own)
        parts = self._parts(leaf, to)

        def make() -> jax.Array:
            made = self._put(leaf, to, parts, weak_type, committed)
            return jax.random.wrap_key_data(made, impl=key) if key else made

        return make

    def run(self) -> None:
        """Runs the copies of GPUs."""
        on_gpus.run(self._copies)

    def _unchanged(
        self, like: Any, leaf: leaves.Leaf, sharding: Any, weak_type: bool
    ) -> jax.Array | None:
        """Returns the previous array if it fits `like` and has not changed, else None."""
        have = self._source.previous.arrays.get(leaf.name)
        if not isinstance(have, jax.Array) or have.is_deleted():
            return None
        if type(have) is not type(like) and not isinstance(like, jax.ShapeDtypeStruct):
            return None
        fits = (have.shape, have.dtype) == (like.shape, like.dtype)
        fits &= sharding in (None, have.sharding)
        fits &= weak_type == bool(getattr(have, "weak_type", False))
        return have if fits and self._source.reader.is_unchanged(leaf) else None

    def _parts(self, leaf: leaves.Leaf, to: "Place") -> list[np.ndarray | on_gpus.Copy]:
        """Returns the parts of an array for this process's devices."""
        found: dict[leaves.Index, np.ndarray] = {}
        parts: list[np.ndarray | on_gpus.Copy] = []
        for index, where in to.shards:
            copy = on_gpus.find(self._source.reader, leaf, index, where)
            if copy is not None:
                self._copies.append(copy)
            elif index not in found:
                found[index] = self._source.part(leaf, index, to.of_this_process)
            parts.append(copy or found[index])
        return parts

    def _put(
        self,
        leaf: leaves.Leaf,
        to: "Place",
        parts: Sequence[np.ndarray | on_gpus.Copy],
        weak_type: bool,
        committed: bool,
    ) -> jax.Array:
        """Returns an array, made from its part for each device of this process."""
        values = [part.made if isinstance(part, on_gpus.Copy) else part for part in parts]
        form = leaf.shape, leaf.dtype, to.sharding, weak_type
        if form in self._avals:
            put = _compat.arrays.put
            return put(self._avals[form], to.sharding, values, to.devices, committed)
        # JAX makes and checks the first array of each form. Later arrays skip the checks.
        arrays = [_on_device(x, where) for x, (_, where) in zip(values, to.shards, strict=True)]
        dtype = leaves.dtype_of(leaf.dtype)
        made: jax.Array = jax.make_array_from_single_device_arrays(
            leaf.shape, to.sharding, arrays, dtype=dtype
        )
        made = _compat.arrays.like(made, weak_type, committed)
        if parts:
            self._avals[form] = made.aval
        return made

    @functools.cached_property
    def _default_sharding(self) -> jax.sharding.Sharding:
        """The default device of JAX, as a sharding."""
        return jax.device_put(np.uint8(0)).sharding


def _on_device(part: Any, where: jax.sharding.SingleDeviceSharding) -> jax.Array:
    aval = jax.core.ShapedArray(part.shape, part.dtype)
    return _compat.arrays.put(aval, where, [part], list(where.device_set), True)


def _key_data(leaf: leaves.Leaf, like: Any) -> Any:
    """Returns shape and dtype of the integers that make up the keys of `like`."""
    impl, data = flatten.data_of_keys(like)
    if impl != leaf.key:
        raise MisfitError(
            f"{leaf.name} was saved with keys of {leaf.key}, and `like` has keys of {impl}: change"
            " `like`"
        )
    return data


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
