"""Splits a tree into the leaves that a snapshot stores, and builds the tree again."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jax_cxl import errors
from jax_cxl._snapshots import leaves, names

_VALUES = (bool, int, float, str, type(None))


@dataclasses.dataclass(frozen=True)
class Source:
    """A leaf, and where its bytes are in this process.

    Attributes:
      leaf: its description in the snapshot.
      array: the array; None if the leaf is a Python value.
    """

    leaf: leaves.Leaf
    array: jax.Array | np.ndarray | None


def sources(tree: Any, writers: tuple[int, ...]) -> list[Source]:
    """Returns the leaves of a tree.

    Args:
      tree: tree of jax.Array, np.ndarray, and values that JSON can store.
      writers: indices of the processes that save.

    Raises:
      TypeError: a leaf is something else, or two leaves have the same name.
    """
    flat, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=_is_leaf)
    found = [_source(jax.tree_util.keystr(path), x, writers) for path, x in flat]
    names = {source.leaf.name for source in found}
    for source in found if len(names) < len(found) else ():
        if source.leaf.name not in names:
            raise TypeError(f"a snapshot cannot have two leaves named {source.leaf.name}")
        names.remove(source.leaf.name)
    return found


def _is_leaf(x: Any) -> bool:
    # Keep nodes without leaves, which optimizers have, for checkpoints of orbax.
    return x is None or (isinstance(x, tuple | list | dict) and not x)


def _source(name: str, x: Any, writers: tuple[int, ...]) -> Source:
    if isinstance(x, tuple | list | dict):
        x = None
    if isinstance(x, _VALUES) and not isinstance(x, np.generic):
        return Source(leaves.Leaf(name, value=x), None)
    key = ""
    if leaves.is_key(x):
        key, x = str(jax.random.key_impl(x)), jax.random.key_data(x)
    if isinstance(x, jax.Array):
        shards = leaves.shards_of(x.sharding, x.shape, writers)
    elif isinstance(x, np.ndarray | np.generic):
        x = np.asarray(x)
        # All processes have this array. The first process writes it.
        shards = (leaves.Shard(tuple((0, n) for n in x.shape), (0,)),)
    else:
        raise TypeError(
            f"a snapshot cannot have {name}, of type {type(x).__name__}: leaves are arrays of JAX"
            " or NumPy, bool, int, float, str and None"
        )
    if not leaves.is_supported(x.dtype):
        raise TypeError(
            f"a snapshot cannot have {name}, an array of {x.dtype!r}: elements are numbers in the"
            " byte order of this machine"
        )
    return Source(leaves.Leaf(name, x.dtype.name, tuple(x.shape), shards, key), x)


def rebuild(
    like: Any,
    saved: dict[str, leaves.Leaf],
    read: Callable[[leaves.Leaf, leaves.Index], np.ndarray],
) -> Any:
    """Returns a tree like `like`, with the saved leaves of the same names.

    Args:
      like: tree of arrays, `jax.ShapeDtypeStruct`, or values.
      saved: leaves of the snapshot by name.
      read: reads a part of a leaf.

    Raises:
      SnapshotError: a leaf is missing in the snapshot, or has another shape or dtype.
    """
    flat, structure = jax.tree_util.tree_flatten_with_path(like, is_leaf=lambda x: x is None)
    asked = [jax.tree_util.keystr(path) for path, _ in flat]
    if not all(name in saved for name in asked):
        saved = _by_keys(asked, saved)
    made = [_restored(x, saved[name], read) for name, (_, x) in zip(asked, flat, strict=True)]
    return jax.tree.unflatten(structure, made)


def _by_keys(asked: list[str], saved: dict[str, leaves.Leaf]) -> dict[str, leaves.Leaf]:
    """Returns the leaves by the requested names.

    Leaves that came from orbax have names with other brackets, `['mu']` for `.mu`.
    """
    by_keys: dict[tuple[str, ...], list[leaves.Leaf]] = {}
    for name, leaf in saved.items():
        by_keys.setdefault(names.simple(name), []).append(leaf)
    found = {}
    for name in asked:
        same = [saved[name]] if name in saved else by_keys.get(names.simple(name), [])
        if len(same) != 1:
            raise errors.SnapshotError(f"the snapshot has no leaf {name or '(the whole tree)'}")
        found[name] = same[0]
    return found


def _restored(
    like: Any,
    leaf: leaves.Leaf,
    read: Callable[[leaves.Leaf, leaves.Index], np.ndarray],
) -> Any:
    if not leaf.dtype:
        if not isinstance(like, _VALUES):
            raise errors.SnapshotError(f"{leaf.name} is the value {leaf.value!r}, not an array")
        return leaf.value
    if not hasattr(like, "shape") or not hasattr(like, "dtype"):
        raise errors.SnapshotError(f"{leaf.name} is an array of {leaf.shape}, not {like!r}")
    if leaves.is_key(like) != bool(leaf.key):
        words = ("typed PRNG keys", "an array") if leaf.key else ("an array", "typed PRNG keys")
        raise errors.SnapshotError(
            f"{leaf.name} is {words[0]} in the snapshot, and {words[1]} was asked for"
        )
    key = leaf.key
    _check_fits(leaf, _key_data(leaf, like) if key else like)
    whole = tuple((0, n) for n in leaf.shape)
    if isinstance(like, np.ndarray):
        return read(leaf, whole)
    if isinstance(like, np.generic):
        return read(leaf, whole)[()]
    if not key and jax.dtypes.canonicalize_dtype(like.dtype) != like.dtype:
        raise errors.SnapshotError(
            f"{leaf.name} is {leaf.dtype}, which JAX has only with jax_enable_x64; set it, or ask"
            " for an array of NumPy"
        )
    sharding = getattr(like, "sharding", None)
    if sharding is None:
        array = jax.numpy.asarray(read(leaf, whole))
    else:
        array = _on_devices(leaf, _of_rank(sharding, len(leaf.shape)), read)
    return jax.random.wrap_key_data(array, impl=key) if key else array


def _key_data(leaf: leaves.Leaf, like: Any) -> Any:
    """Returns shape and dtype of the data of keys."""
    impl = str(jax.random.key_impl(like)) if isinstance(like, jax.Array) else None
    expected = jax.random.key(0, impl=leaf.key).dtype
    if like.dtype != expected or impl not in (None, leaf.key):
        raise errors.SnapshotError(
            f"{leaf.name} has keys of {leaf.key} in the snapshot, and keys of {impl or like.dtype}"
            " were asked for"
        )
    return jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(like.shape, like.dtype))


def _check_fits(leaf: leaves.Leaf, like: Any) -> None:
    if like.shape != leaf.shape:
        raise errors.SnapshotError(
            f"{leaf.name} has shape {leaf.shape} in the snapshot, and {like.shape} was asked for"
        )
    if like.dtype != leaves.dtype_of(leaf.dtype):
        raise errors.SnapshotError(
            f"{leaf.name} is {leaf.dtype} in the snapshot, and {like.dtype} was asked for"
        )


def _of_rank(sharding: jax.sharding.Sharding, rank: int) -> jax.sharding.Sharding:
    """Returns the sharding of key data for a sharding of keys, which have fewer dimensions."""
    if isinstance(sharding, jax.NamedSharding):
        spec = (*sharding.spec, *(None,) * (rank - len(sharding.spec)))
        return jax.NamedSharding(sharding.mesh, jax.P(*spec), memory_kind=sharding.memory_kind)
    return sharding


def _on_devices(
    leaf: leaves.Leaf,
    sharding: jax.sharding.Sharding,
    read: Callable[[leaves.Leaf, leaves.Index], np.ndarray],
) -> jax.Array:
    parts: dict[leaves.Index, np.ndarray] = {}
    arrays = []
    for device, slices in sharding.addressable_devices_indices_map(leaf.shape).items():
        index = leaves.index_of(slices or (slice(None),) * len(leaf.shape), leaf.shape)
        if index not in parts:
            parts[index] = read(leaf, index)
        arrays.append(jax.device_put(parts[index], jax.sharding.SingleDeviceSharding(device)))
    return jax.make_array_from_single_device_arrays(leaf.shape, sharding, arrays)
