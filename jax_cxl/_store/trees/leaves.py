"""Descriptions of the leaves of a tree: dtype, shape, shards, and which processes hold them."""

import dataclasses
import functools
import json
import math
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from jax_cxl import errors
from jax_cxl._store import frameworks

if TYPE_CHECKING:
    import jax

Index = tuple[tuple[int, int], ...]  # start and end along each dimension

_VERSION = 3

# Subclasses of these types are refused, because a restore would return the plain types.
VALUES = (bool, int, float, str, type(None))
_OF_NUMPY = (np.ndarray, np.memmap)


@dataclasses.dataclass(frozen=True)
class Shard:
    """A part of an array, with an entry in `writers` for each device that holds it."""

    index: Index
    writers: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(end - start for start, end in self.index)


class Leaf(NamedTuple):
    """A leaf of a saved tree.

    Attributes:
      name: its path in the tree, as `jax.tree_util.keystr` writes it.
      dtype: name of the dtype; "" for a Python value.
      shards: parts of the array, which cover it without overlap.
      key: the PRNG implementation if the leaf is the data of typed keys; else "".
      local: whether each process has an array of its own, of this shape. Then the shards have an
        additional first dimension, whose index is the position of the process.
    """

    name: str
    dtype: str = ""
    shape: tuple[int, ...] = ()
    shards: tuple[Shard, ...] = ()
    key: str = ""
    weak_type: bool = False
    local: bool = False
    value: Any = None

    @property
    def stored_bytes(self) -> int:
        """Bytes of all shards."""
        return sum(math.prod(shard.shape) for shard in self.shards) * self.itemsize

    @property
    def itemsize(self) -> int:
        return dtype_of(self.dtype).itemsize


@functools.cache
def dtype_of(name: str) -> np.dtype:
    """Returns a dtype by JAX's name."""
    try:
        return np.dtype(name)
    except TypeError:
        pass
    try:
        import ml_dtypes  # Only dtypes that NumPy lacks need this package.
    except ImportError as error:
        raise errors.StoreError(
            f"NumPy has no dtype {name}: pip install ml_dtypes, which adds bfloat16, float8 and"
            " int4"
        ) from error
    return np.dtype(getattr(ml_dtypes, name, None) or name)


@functools.cache
def is_supported(dtype: np.dtype) -> bool:
    """Whether a snapshot can hold this dtype.

    The name of the dtype must define it completely, because only the name is stored.
    """
    if dtype.hasobject or dtype.kind in "mMSU" or dtype.type is np.void:
        return False
    try:
        return dtype_of(dtype.name) == dtype
    except TypeError:
        return False


def check_kind(name: str, x: Any) -> None:
    """Raises TypeError if a leaf is neither an array nor a Python value."""
    if type(x) in (*VALUES, *_OF_NUMPY) or isinstance(x, np.generic) or is_array(x):
        return
    hint = ""
    if isinstance(x, tuple | list | dict | set | frozenset):
        hint = (
            ". JAX does not know this container: register it (jax.tree_util), or make it a dict,"
            " list or tuple"
        )
    elif (jax := frameworks.jax()) and isinstance(x, jax.core.Tracer):
        hint = ". Save outside of functions that JAX traces"
    raise TypeError(
        f"a store cannot hold {name or 'this tree'}, of type {type(x).__name__}: leaves must be"
        f" JAX or NumPy arrays, bool, int, float, str and None{hint}"
    )


def is_key(x: Any) -> bool:
    """Whether x is an array of typed PRNG keys, or describes one."""
    return hasattr(x, "dtype") and _is_key_type(x.dtype)


@functools.cache
def _is_key_type(dtype: Any) -> bool:
    jax = frameworks.jax()
    if isinstance(dtype, np.dtype) or not jax:
        return False
    return bool(jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key))


def is_array(x: Any) -> bool:
    """Whether x is a JAX array with values. `isinstance(x, jax.Array)` takes longer."""
    kind: Any = type(x)
    return is_array_type(kind)


@functools.cache
def is_array_type(kind: Any) -> bool:
    """Whether objects of this type are JAX arrays with values."""
    jax = frameworks.jax()
    return bool(jax) and issubclass(kind, jax.Array) and not issubclass(kind, jax.core.Tracer)


def index_of(slices: Sequence[slice], shape: Sequence[int]) -> Index:
    """Returns the index of a shard from JAX's slices."""
    bounds = (s.indices(n) for s, n in zip(slices, shape, strict=True))
    return tuple((start, end) for start, end, _ in bounds)


@functools.lru_cache(4096)
def shards_of(
    sharding: "jax.sharding.Sharding", shape: tuple[int, ...], writers: tuple[int, ...], own: int
) -> tuple[tuple[Shard, ...], bool]:
    """Returns the distinct shards of a sharding, in device order, and whether it is local.

    In a job of several processes a sharding is local if all of its devices belong to this process.
    All processes describe a local sharding alike, as if each process had an array of its own.
    """
    writer_of = {process: position for position, process in enumerate(writers)}
    holders: dict[Index, list[int]] = {}
    devices: Any = sharding.devices_indices_map(shape)
    for device, slices in devices.items():
        if device.process_index not in writer_of:
            raise ValueError(
                f"it is on {device} of process {device.process_index}, which is not in the job."
                " Move the array to devices of the job first"
            )
        holders.setdefault(index_of(slices, shape), []).append(writer_of[device.process_index])
    shards = tuple(Shard(index, tuple(of)) for index, of in holders.items())
    local = len(writers) > 1 and {device.process_index for device in devices} == {own}
    return (of_each_process(shards, len(writers)) if local else shards), local


def of_each_process(shards: Sequence[Shard], num_writers: int) -> tuple[Shard, ...]:
    """Returns the shards of a local array for all processes, from the shards of one process."""
    return tuple(
        Shard(((writer, writer + 1), *shard.index), (writer,) * len(shard.writers))
        for writer in range(num_writers)
        for shard in shards
    )


def encode(structure: str, values: Sequence[Any]) -> bytes:
    """Returns the directory of a snapshot from its `structure` and its Python values."""
    return zlib.compress(f"[{structure},{values_text(values)}]".encode(), 1)


def structure(leaves: Sequence[Leaf], writers: Sequence[int], whole: bool) -> str:
    """Returns the content of a directory, except the Python values, as JSON."""
    shardings: dict[tuple[Shard, ...], int] = {}
    rows = [
        [
            leaf.name,
            leaf.dtype,
            leaf.shape,
            shardings.setdefault(leaf.shards, len(shardings)),
            leaf.key,
            leaf.weak_type,
            leaf.local,
        ]
        for leaf in leaves
    ]
    tables = [[[shard.index, shard.writers] for shard in shards] for shards in shardings]
    return json.dumps([_VERSION, list(writers), whole, tables, rows], separators=(",", ":"))


def values_text(values: Sequence[Any]) -> str:
    """Returns Python values as JSON."""
    return json.dumps(values, separators=(",", ":"))


def decode(data: bytes) -> tuple[list[Leaf], list[int], bool]:
    """Reads a directory: leaves, the processes that saved, and whether shards are whole."""
    try:
        (version, writers, whole, tables, rows), values = json.loads(zlib.decompress(data))
        if version != _VERSION:
            raise ValueError(
                f"the directory has version {version}, but this jax_cxl reads version {_VERSION}:"
                " use the jax_cxl that saved it"
            )
        shardings = [
            tuple(
                Shard(tuple((int(a), int(b)) for a, b in index), tuple(map(int, holders)))
                for index, holders in table
            )
            for table in tables
        ]
        left = iter(values)
        alike: dict[Any, Leaf] = {}  # Leaves that differ only in their names are checked once.
        leaves = []
        for name, dtype, shape, shards, key, weak_type, local in rows:
            form = dtype, tuple(shape), shards, key, weak_type, local
            if (leaf := alike.get(form)) is None:
                shape = tuple(map(int, shape))
                leaf = Leaf("", str(dtype), shape, shardings[shards], str(key))
                leaf = alike[form] = leaf._replace(weak_type=bool(weak_type), local=bool(local))
                _check(leaf, len(writers))
            leaves.append(Leaf(str(name), *leaf[1:-1], None if dtype else next(left)))
        return leaves, [int(writer) for writer in writers], bool(whole)
    except (zlib.error, TypeError, LookupError, AttributeError, StopIteration) as error:
        raise ValueError(
            f"the version's list of leaves is damaged ({error!r}): restore an older version"
        ) from error


def _check(leaf: Leaf, num_writers: int) -> None:
    if not leaf.dtype:
        return
    _ = leaf.itemsize
    stored = (num_writers, *leaf.shape) if leaf.local else leaf.shape
    for shard in leaf.shards:
        inside = len(shard.index) == len(stored) and all(
            0 <= start <= end <= n for (start, end), n in zip(shard.index, stored, strict=True)
        )
        if not inside or not shard.writers or not all(0 <= w < num_writers for w in shard.writers):
            raise ValueError(
                f"the version's list of leaves is damaged: the shard {shard.index} that"
                f" processes {shard.writers} saved does not fit into an array of shape {stored}"
                f" from {num_writers} processes. Restore an older version"
            )
