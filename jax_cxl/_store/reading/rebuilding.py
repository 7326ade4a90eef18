"""Builds a tree from the leaves of a version."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jax_cxl import _compat, errors
from jax_cxl._store.reading import on_gpus
from jax_cxl._store.reading.restoring import Reader
from jax_cxl._store.reading.reusing import Arrays
from jax_cxl._store.trees import collector, flatten, leaves, names


class MisfitError(errors.StoreError):
    """What the caller wants is not what was saved. Nothing is damaged."""


@dataclasses.dataclass(frozen=True)
class Wanted:
    """A tree like the tree to build, split into leaves.

    Attributes:
      names: names of the leaves.
      likes: the leaves: arrays, `jax.ShapeDtypeStruct`, or values.
      structure: structure of the tree.
    """

    names: Sequence[str]
    likes: Sequence[Any]
    structure: Any


@collector.paused()
def wanted(like: Any) -> Wanted:
    """Splits a tree into its leaves.

    Raises:
      TypeError: a leaf cannot be in a snapshot.
    """
    flat, structure = jax.tree_util.tree_flatten_with_path(like, is_leaf=lambda x: x is None)
    asked = [jax.tree_util.keystr(path) for path, _ in flat]
    for name, (_, x) in zip(asked, flat, strict=True):
        if not isinstance(x, jax.ShapeDtypeStruct):
            flatten.check_kind(name, x)
    return Wanted(asked, [x for _, x in flat], structure)


@collector.paused()
def rebuild(
    of: Wanted,
    reader: Reader,
    writers: Sequence[int],
    own: int,
    previous: Arrays | None = None,
) -> Any:
    """Returns a tree like `of`, with the saved leaves of the same names.

    Args:
      of: the tree to build.
      reader: the snapshot.
      writers: indices of the processes that restore.
      own: index of this process.
      previous: arrays of the version that `reader` knows. An array that has not changed since then
        is used again.

    Raises:
      StoreError: a leaf is missing in the version, or has another shape or dtype, or the processes
        that saved it had different values.
    """
    saved = by_names(of.names, reader.leaves)
    building = _Building()
    makers = [
        _restored(x, leaf, _Source(reader, leaf, writers, own, name, previous), building)
        for x, leaf, name in zip(of.likes, saved, of.names, strict=True)
    ]
    on_gpus.run(building.copies)
    return jax.tree.unflatten(of.structure, [make() for make in makers])


def by_names(asked: Sequence[str], saved: dict[str, leaves.Leaf]) -> list[leaves.Leaf]:
    """Returns the leaves of the requested names.

    Leaves that came from orbax have names with other brackets, such as `['mu']` for `.mu`. They are
    found nevertheless.
    """
    if all(name in saved for name in asked):
        return [saved[name] for name in asked]
    by_keys: dict[tuple[str, ...], list[leaves.Leaf]] = {}
    for name, leaf in saved.items():
        by_keys.setdefault(names.alike(name), []).append(leaf)
    found = []
    for name in asked:
        same = [saved[name]] if name in saved else by_keys.get(names.alike(name), [])
        if len(same) != 1:
            text = names.simple(name)
            other = next((of for of in saved if names.simple(of) == text), None)
            advice = f"it has {other}: use its key in `like`" if other else "leave it out of `like`"
            raise MisfitError(f"the version has no leaf {name or '(the whole tree)'}: {advice}")
        found.append(same[0])
    return found


class _Building:
    """The data that the leaves of a tree share.

    Attributes:
      copies: the parts that GPUs copy.
    """

    def __init__(self) -> None:
        self.copies: list[on_gpus.Copy] = []
        self._avals: dict[Any, Any] = {}
        self._in_jax: dict[np.dtype, bool] = {}

    def has(self, dtype: np.dtype) -> bool:
        """Whether JAX has a dtype. It has 64-bit dtypes only if the program asks for them."""
        if dtype not in self._in_jax:
            self._in_jax[dtype] = jax.dtypes.canonicalize_dtype(dtype) == dtype
        return self._in_jax[dtype]

    def put(
        self,
        leaf: leaves.Leaf,
        to: "Place",
        parts: Sequence[Any],
        weak_type: bool,
        committed: bool,
    ) -> jax.Array:
        """Returns an array, made from its parts on the devices of this process.

        Args:
          leaf: the array.
          to: where it goes.
          parts: the part of each device: a NumPy array, or what its GPU has copied.
          weak_type, committed: as for `_compat.arrays.like`.
        """
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


@dataclasses.dataclass(frozen=True)
class _Source:
    """Reads a leaf for this process.

    Attributes:
      reader: the snapshot.
      leaf: the leaf.
      writers: indices of the processes that restore.
      own: index of this process.
      name: name of the leaf in the tree to build.
      previous: arrays of the version that the reader knows, or None.
    """

    reader: Reader
    leaf: leaves.Leaf
    writers: Sequence[int]
    own: int
    name: str
    previous: Arrays | None

    def whole(self) -> np.ndarray:
        """Returns the whole array."""
        into = None
        if self.previous is not None and not self.leaf.local:
            into = self.previous.into(self.name, self.reader, self.leaf)
        return self.part(tuple((0, n) for n in self.leaf.shape), True, into)

    def part(
        self, index: leaves.Index, for_this_process: bool, into: np.ndarray | None = None
    ) -> np.ndarray:
        """Returns a part of the array.

        Args:
          index: start and end of the part along each dimension.
          for_this_process: whether the array is for this process alone.
          into: as for `Reader.read`.
        """
        if not self.leaf.local:
            return self.reader.read(self.leaf, index, into)
        saved_by = len(self.reader.writers)
        if for_this_process and saved_by == len(self.writers):
            return self.reader.read_local(self.leaf, index, self.writers.index(self.own))
        return self.reader.read_same(self.leaf, index)

    def parts(self, to: "Place", copies: list[on_gpus.Copy]) -> list[np.ndarray | on_gpus.Copy]:
        """Returns the parts of the array for the devices of this process.

        Args:
          to: where the array goes.
          copies: the list to which this adds the parts that GPUs copy. The result contains them
            too.
        """
        found: dict[leaves.Index, np.ndarray] = {}
        parts: list[np.ndarray | on_gpus.Copy] = []
        for index, where in to.shards:
            copy = on_gpus.find(self.reader, self.leaf, index, where)
            if copy is not None:
                copies.append(copy)
            elif index not in found:
                found[index] = self.part(index, to.of_this_process)
            parts.append(copy or found[index])
        return parts

    def unchanged(self, like: Any) -> jax.Array | None:
        """Returns the previous array if it fits `like` and has not changed, else None."""
        have = None if self.previous is None else self.previous.get(self.name)
        if not isinstance(have, jax.Array) or have.is_deleted():
            return None
        if type(have) is not type(like) and not isinstance(like, jax.ShapeDtypeStruct):
            return None
        wanted_sharding = getattr(like, "sharding", None)
        fits = (have.shape, have.dtype) == (like.shape, like.dtype)
        fits &= wanted_sharding in (None, have.sharding)
        weak = bool(getattr(like, "weak_type", False)) == bool(getattr(have, "weak_type", False))
        return have if fits and weak and self.reader.is_unchanged(self.leaf) else None


def _restored(like: Any, leaf: leaves.Leaf, source: _Source, building: _Building) -> Any:
    """Reads a leaf, and returns a function that makes it.

    Call the function only after the copies that this adds to `building` have run.
    """
    if not leaf.dtype:
        if type(like) not in flatten.VALUES:
            raise MisfitError(
                f"{leaf.name} is the value {leaf.value!r}, not an array: change `like`"
            )
        return lambda: leaf.value
    if not hasattr(like, "shape") or not hasattr(like, "dtype"):
        raise MisfitError(f"{leaf.name} is an array of {leaf.shape}, not {like!r}: change `like`")
    if leaves.is_key(like) != bool(leaf.key):
        words = ("typed PRNG keys", "an array") if leaf.key else ("an array", "typed PRNG keys")
        raise MisfitError(
            f"{leaf.name} was saved as {words[0]}, and `like` has {words[1]}: change `like`"
        )
    key = leaf.key
    check_fits(leaf, _key_data(leaf, like) if key else like)
    if isinstance(like, np.ndarray | np.generic):
        array = source.whole()
        return lambda: array if isinstance(like, np.ndarray) else array[()]
    if not key and not building.has(like.dtype):
        raise MisfitError(
            f"{leaf.name} is {leaf.dtype}, which JAX has only with jax_enable_x64; set it, or ask"
            " for a NumPy array"
        )
    same = source.unchanged(like)
    if same is not None:
        return lambda: same
    make = _on_devices(like, leaf, source, building)
    return lambda: jax.random.wrap_key_data(make(), impl=key) if key else make()


def _key_data(leaf: leaves.Leaf, like: Any) -> Any:
    """Returns shape and dtype of the integers that make up the keys of `like`.

    Raises:
      StoreError: the saved keys have another PRNG implementation.
    """
    impl = str(jax.random.key_impl(like)) if isinstance(like, jax.Array) else None
    expected = jax.random.key(0, impl=leaf.key).dtype
    if like.dtype != expected or impl not in (None, leaf.key):
        raise MisfitError(
            f"{leaf.name} was saved with keys of {leaf.key}, and `like` has keys of"
            f" {impl or like.dtype}: change `like`"
        )
    return jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(like.shape, like.dtype))


def check_fits(leaf: leaves.Leaf, like: Any) -> None:
    """Checks shape and dtype of a leaf.

    Raises:
      StoreError: they differ from those of `like`.
    """
    if like.shape != leaf.shape:
        raise MisfitError(
            f"{leaf.name} was saved with shape {leaf.shape}, and `like` has {like.shape}: change"
            " `like`"
        )
    if like.dtype != leaves.dtype_of(leaf.dtype):
        raise MisfitError(
            f"{leaf.name} was saved as {leaf.dtype}, and `like` has {like.dtype}: change `like`"
        )


def _on_devices(like: Any, leaf: leaves.Leaf, source: _Source, building: _Building) -> Any:
    """Reads the parts of an array. Returns a function that makes the array from them."""
    sharding: Any = getattr(like, "sharding", None)
    weak_type = bool(getattr(like, "weak_type", False))
    committed = sharding is not None and bool(getattr(like, "committed", True))
    to = place_of(sharding or building.default_sharding, leaf.shape, source.own)
    parts = source.parts(to, building.copies)
    return lambda: building.put(leaf, to, parts, weak_type, committed)


@dataclasses.dataclass(frozen=True)
class Place:
    """Where an array goes.

    Attributes:
      sharding: its sharding.
      shards: for each device of this process, the index of its part, and the device.
      devices: the devices of this process.
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
