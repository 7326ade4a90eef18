"""Splits a tree into the leaves that a snapshot stores, and describes them."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jax_cxl._job import platforms
from jax_cxl._store import agreement, frameworks
from jax_cxl._store.memory import checksum, layout
from jax_cxl._store.trees import leaves, place, pytrees, tensors

if TYPE_CHECKING:
    import jax

# Bytes reserved for Python values. The values change from step to step, but the memory that a tree
# needs should not.
_ROOM_FOR_VALUES = 4096
# Python values with at most this many characters of JSON certainly fit into `_ROOM_FOR_VALUES`,
# however well zlib compresses the text around them.
_SHORT_VALUES = 512


@dataclasses.dataclass(frozen=True, eq=False)
class Description:
    """The leaves of a tree, and what follows from them. It contains no Python values."""

    leaves: tuple[leaves.Leaf, ...]
    writers: tuple[int, ...]
    whole: bool

    @functools.cached_property
    def digest(self) -> int:
        """Checksum of the directory without its Python values."""
        return checksum.of(self._structure.encode())

    @functools.cached_property
    def directory_bytes(self) -> int:
        """Size that the directory would have if all Python values were None."""
        return len(self.directory([None for leaf in self.leaves if not leaf.dtype]))

    def directory(self, values: Sequence[Any]) -> bytes:
        return leaves.encode(self._structure, values)

    @functools.cached_property
    def _structure(self) -> str:
        return leaves.structure(self.leaves, self.writers, self.whole)

    @functools.cached_property
    def _placements(self) -> dict[int, place.Placement]:
        return {}

    def section_bytes(self, values: Sequence[Any], geometry: layout.Geometry) -> int:
        """Returns how many bytes of each device a section needs for versions of this tree."""
        directory_bytes = self.directory_bytes + _ROOM_FOR_VALUES
        if values and len(leaves.values_text(values)) > _SHORT_VALUES:
            directory_bytes = max(directory_bytes, len(self.directory(values)))
        placement = self.placement(geometry.blocks_per_row)
        return geometry.bytes_for(placement.total_rows(directory_bytes))

    def placement(self, blocks_per_row: int) -> place.Placement:
        """Returns where the bytes of the tree go."""
        if blocks_per_row not in self._placements:
            made = place.place(self.leaves, len(self.writers), blocks_per_row, self.whole)
            self._placements[blocks_per_row] = made
        return self._placements[blocks_per_row]


@dataclasses.dataclass(frozen=True)
class Flat:
    """A tree, split into leaves. `arrays` has None in place of a Python value."""

    description: Description
    arrays: "Sequence[jax.Array | np.ndarray | None]"
    values: Sequence[Any]


@dataclasses.dataclass(frozen=True)
class _Known:
    """What a flattener keeps of the last tree, to split the next tree of the same form quickly.

    Attributes:
      others: numbers of the leaves that are not JAX arrays, or are typed keys.
    """

    structure: Any
    writers: tuple[int, ...]
    description: Description
    others: Sequence[int]


class Flattener:
    """Splits trees into leaves. It is quick if a tree has the form of the previous tree."""

    def __init__(self, *, whole: bool) -> None:
        """Makes a flattener; `whole` says whether shards stay whole (`place.py`)."""
        self._whole = whole
        self._last: _Known | None = None
        self._forms: Any = None  # of the last tree

    def flatten(self, tree: Any, writers: tuple[int, ...]) -> Flat:
        """Returns the leaves of a tree of arrays, tensors, and values that JSON can store."""
        found, structure = pytrees.flatten(tree)
        if frameworks.torch() and any(map(tensors.is_tensor, found)):
            found = [tensors.to_save(x) if tensors.is_tensor(x) else x for x in found]
            tree = structure.unflatten(found)
        forms = _forms(found)
        known = self._last
        form = structure, writers, forms
        if known is None or (known.structure, known.writers, self._forms) != form:
            known = self._last = self._describe(tree, found, structure, writers)
        # Keep the newest forms. In each run, a program gives its results the very same aval and
        # sharding objects. So the next comparison is quick: it mostly compares pointers.
        self._forms = forms
        arrays = list(found)
        values = []
        for number in known.others:
            leaf, x = known.description.leaves[number], arrays[number]
            if leaf.key:
                arrays[number] = frameworks.jax().random.key_data(x)
            elif leaf.dtype:
                arrays[number] = np.asarray(x)
            else:
                values.append(x)
                arrays[number] = None
        return Flat(known.description, arrays, values)

    def _describe(
        self, tree: Any, found: Sequence[Any], structure: Any, writers: tuple[int, ...]
    ) -> _Known:
        own = agreement.own()
        described: dict[str, leaves.Leaf] = {}
        for name, x in zip(*pytrees.flatten_with_names(tree)[:2], strict=True):
            if name in described:
                raise TypeError(f"a store cannot hold two leaves named {name}: rename one of them")
            leaves.check_kind(name, x)
            is_value = type(x) in leaves.VALUES
            described[name] = leaves.Leaf(name) if is_value else describe(name, x, writers, own)
        description = Description(tuple(described.values()), writers, self._whole)
        others = [
            number
            for number, (leaf, x) in enumerate(zip(description.leaves, found, strict=True))
            if leaf.key or not leaves.is_array(x)
        ]
        return _Known(structure, writers, description, others)


def _forms(found: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Returns what the descriptions of the leaves depend on: their types, shapes and shardings."""
    arrays = {kind for kind in set(map(type, found)) if leaves.is_array_type(kind)}
    return (
        [x.aval if type(x) in arrays else _form(x) for x in found],
        [x.sharding if type(x) in arrays else None for x in found],
    )


def _form(x: Any) -> Any:
    if isinstance(x, np.ndarray | np.generic):
        return type(x), x.dtype, x.shape
    return type(x)


def describe(name: str, x: Any, writers: tuple[int, ...], own: int) -> leaves.Leaf:
    """Describes an array, or a `jax.ShapeDtypeStruct` with a sharding, as this process sees it."""
    try:
        weak_type = bool(getattr(x, "weak_type", False))  # Arrays of keys do not have it.
        sharding = getattr(x, "sharding", None)
        form = _form_of(x.dtype, tuple(x.shape), weak_type, sharding, writers, own)
    except ValueError as error:
        raise ValueError(f"a store cannot hold {name}: {error}") from None
    if not form.dtype:
        raise TypeError(
            f"a store cannot hold {name}, an array of {x.dtype!r}: elements must be numbers in"
            " the byte order of this machine. Convert the array with astype, or leave it out"
        )
    return leaves.Leaf(name, *form[1:])


@functools.lru_cache(4096)
def _form_of(
    dtype: Any,
    shape: tuple[int, ...],
    weak_type: bool,
    sharding: "jax.sharding.Sharding | None",
    writers: tuple[int, ...],
    own: int,
) -> leaves.Leaf:
    """Describes arrays without their names; the dtype is "" if a store cannot hold it."""
    key = ""
    shards: tuple[leaves.Shard, ...]
    if sharding is None:
        # This describes a NumPy array, of which each process has its own.
        shards, local = (leaves.Shard(tuple((0, n) for n in shape), (0,)),), len(writers) > 1
        shards = leaves.of_each_process(shards, len(writers)) if local else shards
    else:
        import jax

        x = jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)
        if leaves.is_key(x):
            key, x = data_of_keys(x)
        dtype, shape = x.dtype, x.shape
        shards, local = leaves.shards_of(x.sharding, shape, writers, own)
    name = dtype.name if leaves.is_supported(dtype) else ""
    return leaves.Leaf("", name, shape, shards, key, weak_type, local)


def data_of_keys(x: Any) -> "tuple[str, jax.ShapeDtypeStruct]":
    """Returns the implementation of typed keys, and a description of their data."""
    import jax

    found: list[str] = []

    def data(keys: Any) -> Any:
        found.append(str(jax.random.key_impl(keys)))
        return jax.random.key_data(keys)

    shape = jax.eval_shape(data, x)
    return found[0], jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=x.sharding)


def wait_for_values(flat: Flat) -> None:
    """Waits until arrays on CPUs have been computed."""
    arrays = [x for x in flat.arrays if x is not None and not isinstance(x, np.ndarray)]
    if not arrays:
        return
    import jax

    on_cpu = arrays
    if not platforms.only_cpus():
        _check_not_deleted(flat)
        on_cpu = [x for x in arrays if _is_on_cpu(x.sharding)]
    try:
        jax.block_until_ready(on_cpu)
    except Exception:
        _check_not_deleted(flat)
        raise


def _check_not_deleted(flat: Flat) -> None:
    arrays: Sequence[Any] = flat.arrays
    for leaf, x in zip(flat.description.leaves, arrays, strict=True):
        if leaves.is_array(x) and x.is_deleted():
            raise RuntimeError(f"{leaf.name} has been deleted or donated: save it before that")


@functools.lru_cache(1024)
def _is_on_cpu(sharding: "jax.sharding.Sharding") -> bool:
    devices: Any = sharding.device_set
    return any(device.platform == "cpu" for device in devices)
