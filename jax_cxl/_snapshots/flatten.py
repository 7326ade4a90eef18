"""Takes a tree apart into what a snapshot stores, and puts it together again."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jax_cxl import errors
from jax_cxl._snapshots import leaves

_VALUES = (bool, int, float, str, type(None))


@dataclasses.dataclass(frozen=True)
class Source:
    """A leaf, and where its bytes are in this process.

    Attributes:
      leaf: what the snapshot says of it.
      array: the array; None if the leaf is a Python value.
    """

    leaf: leaves.Leaf
    array: jax.Array | np.ndarray | None


def sources(tree: Any, writers: tuple[int, ...]) -> list[Source]:
    """Returns the leaves of a tree.

    Args:
      tree: of jax.Array, np.ndarray, and values that JSON has.
      writers: indices of the processes that save.

    Raises:
      TypeError: a leaf is something else.
    """
    flat, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda x: x is None)
    return [_source(jax.tree_util.keystr(path), x, writers) for path, x in flat]


def _source(name: str, x: Any, writers: tuple[int, ...]) -> Source:
    if isinstance(x, _VALUES):
        return Source(leaves.Leaf(name, value=x), None)
    key = ""
    if leaves.is_key(x):
        key, x = str(jax.random.key_impl(x)), jax.random.key_data(x)
    if isinstance(x, jax.Array):
        shards = leaves.shards_of(x.sharding, x.shape, writers)
    elif isinstance(x, np.ndarray | np.generic):
        x = np.asarray(x)
        # All processes have it; the first one writes it.
        shards = (leaves.Shard(tuple((0, n) for n in x.shape), (0,)),)
    else:
        raise TypeError(
            f"a snapshot cannot have {name}, of type {type(x).__name__}: leaves are arrays of JAX"
            " or NumPy, bool, int, float, str and None"
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
    made = []
    for path, x in flat:
        name = jax.tree_util.keystr(path)
        if name not in saved:
            raise errors.SnapshotError(f"the snapshot has no leaf {name or '(the whole tree)'}")
        made.append(_restored(x, saved[name], read))
    return jax.tree.unflatten(structure, made)


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
    key = leaf.key if leaves.is_key(like) else ""
    if (bool(key), like.shape) != (
        bool(leaf.key),
        leaf.shape[: len(like.shape)] if key else leaf.shape,
    ):
        raise errors.SnapshotError(
            f"{leaf.name} has shape {leaf.shape} in the snapshot, and {like.shape} was asked for"
        )
    if not key and like.dtype != leaves.dtype_of(leaf.dtype):
        raise errors.SnapshotError(
            f"{leaf.name} is {leaf.dtype} in the snapshot, and {like.dtype} was asked for"
        )
    whole = tuple((0, n) for n in leaf.shape)
    if isinstance(like, np.ndarray | np.generic):
        return read(leaf, whole)
    sharding = getattr(like, "sharding", None)
    if sharding is None:
        array = jax.numpy.asarray(read(leaf, whole))
    else:
        array = _on_devices(leaf, _of_rank(sharding, len(leaf.shape)), read)
    return jax.random.wrap_key_data(array, impl=key) if key else array


def _of_rank(sharding: jax.sharding.Sharding, rank: int) -> jax.sharding.Sharding:
    """Returns the sharding of key data for that of keys, which have fewer dimensions."""
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
