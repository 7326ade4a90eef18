"""The description of a tree, which is the same on all processes that save the tree."""

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from typing import Any

from jax_cxl import errors
from jax_cxl._store import agreement
from jax_cxl._store.memory import checksum, layout
from jax_cxl._store.trees import leaves, place
from jax_cxl._store.trees.leaves import Leaf

_ABSENT = "no leaf"
# Bytes reserved for Python values. The values change from step to step, but the memory that a tree
# needs should not.
_ROOM_FOR_VALUES = 4096
# Python values with at most this many characters of JSON certainly fit into `_ROOM_FOR_VALUES`,
# however well zlib compresses the text around them.
_SHORT_VALUES = 512


@dataclasses.dataclass(frozen=True, eq=False)
class Description:
    """The leaves of a tree, and what follows from them. It contains no Python values."""

    leaves: tuple[Leaf, ...]
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
        """Returns the directory of a version with these Python values."""
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
        if len(leaves.values_text(values)) > _SHORT_VALUES:
            directory_bytes = max(directory_bytes, len(self.directory(values)))
        placement = self.placement(geometry.blocks_per_row)
        return geometry.bytes_for(placement.total_rows(directory_bytes))

    def placement(self, blocks_per_row: int) -> place.Placement:
        """Returns where the bytes of the tree go."""
        if blocks_per_row not in self._placements:
            made = place.place(self.leaves, len(self.writers), blocks_per_row, self.whole)
            self._placements[blocks_per_row] = made
        return self._placements[blocks_per_row]


def merge(told: Sequence[Sequence[Leaf]], writers: tuple[int, ...], whole: bool) -> Description:
    """Returns one description from the descriptions of all processes.

    Descriptions of the same tree differ if all devices of an array belong to one process: that
    process describes the array as an array of its own, and the other processes do not.
    """
    merged = []
    for row in itertools.zip_longest(*told):
        leaf = row[0] if len(set(map(repr, row))) == 1 else _in_one_process(row)
        if leaf is None:
            other = next(i for i, leaf in enumerate(row) if repr(leaf) != repr(row[0]))
            raise _mismatch(writers, (0, other), (row[0], row[other]))
        merged.append(leaf._replace(value=None))
    return Description(tuple(merged), writers, whole)


def _in_one_process(row: Sequence[Leaf | None]) -> Leaf | None:
    """Returns the array that `row` describes if all of its devices are in one process, else None.

    `row` contains one leaf of the tree, as each of the processes describes it.
    """
    leaf = next((leaf for leaf in row if leaf is not None and not leaf.local), None)
    if leaf is None or len({w for shard in leaf.shards for w in shard.writers}) != 1:
        return None
    (owner,) = {w for shard in leaf.shards for w in shard.writers}
    shards = leaves.of_each_process(leaf.shards, len(row))
    expected = [leaf] * len(row)
    expected[owner] = leaf._replace(local=True, shards=shards)
    return leaf if list(row) == expected else None


def _mismatch(
    writers: Sequence[int], sides: tuple[int, int], of: Sequence[Leaf | None]
) -> errors.MismatchError:
    texts = [describe(leaf) for leaf in of]
    if texts[0] == texts[1]:
        texts = [f"{text} in {_shards(leaf)}" for text, leaf in zip(texts, of, strict=True)]
    return agreement.mismatch(
        writers, sides, texts, "save different trees. The first leaf that differs"
    )


def describe(leaf: Leaf | None) -> str:
    """Returns a leaf in words."""
    if leaf is None:
        return _ABSENT
    name = leaf.name or "(the whole tree)"
    if not leaf.dtype:
        return f"{name}, the {type(leaf.value).__name__} {leaf.value!r}"
    kind = f"keys of {leaf.key}" if leaf.key else leaf.dtype
    parts = [f"{name}, {kind}[{', '.join(map(str, leaf.shape))}]"]
    parts += ["with a weak type"] if leaf.weak_type else []
    parts += ["on devices of its own"] if leaf.local else []
    return " ".join(parts)


def _shards(leaf: Leaf | None) -> str:
    held = [(shard.index, shard.writers) for shard in leaf.shards] if leaf else []
    text = "; ".join(
        f"[{', '.join(f'{a}:{b}' for a, b in index)}] of processes {sorted(set(by))}"
        for index, by in held[:4]
    )
    return f"{len(held)} shards ({text}{'; ...' if len(held) > 4 else ''})"
