"""Reads parts of a version's arrays. Each block is read once, and checked."""

import copy
import dataclasses
import functools
import itertools
import math
import os
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jax_cxl import errors
from jax_cxl._store.memory import layout, stripes
from jax_cxl._store.memory.layout import Record
from jax_cxl._store.memory.section import Section
from jax_cxl._store.reading import geometry
from jax_cxl._store.trees import leaves, place, pytrees

if TYPE_CHECKING:
    import concurrent.futures

_RUN = 4  # Blocks that a thread reads at a time.
_KEPT_BLOCKS = 16  # Cached, so that a block with parts of several leaves is read once.


class MisfitError(errors.StoreError):
    """What the caller wants is not what was saved. Nothing is damaged."""


class Structure:
    """The content of a directory, which other versions of the same tree can share.

    Attributes:
      parts: where the bytes of a shard are, by the name of its leaf and its number.
      found: a cache for callers, for what they derive from the structure.
    """

    @pytrees.collector_paused()
    def __init__(self, directory: np.ndarray, records: Sequence[Record], blocks_per_row: int):
        self.directory = directory
        try:
            found, self.writers, whole = leaves.decode(directory.tobytes())
        except ValueError as error:
            raise errors.StoreError(str(error)) from error
        self.leaves = {leaf.name: leaf for leaf in found}
        placement = place.place(found, len(records), blocks_per_row, whole)
        if len(self.writers) != len(records) or any(
            placement.data_blocks(r.writer) != r.data_blocks
            or placement.first_row(r.writer) != r.first_row
            for r in records
        ):
            raise errors.StoreError(
                "the version is damaged, because its records do not match its list of leaves:"
                " restore an older version of the data"
            )
        self.parts: dict[tuple[str, int], list[place.Part]] = {}
        for part in placement.parts:
            self.parts.setdefault((found[part.leaf].name, part.shard), []).append(part)
        self.found: dict[Any, Any] = {}
        # Python values are in the directory, so each version has its own.
        self._has_values = not all(leaf.dtype for leaf in found)
        self._of = self._key(records)

    def is_of(self, records: Sequence[Record]) -> bool:
        """Whether a version of the same name has the same leaves, in the same places."""
        return self._key(records) == self._of

    def _key(self, records: Sequence[Record]) -> Any:
        values = records[0].directory_checksum if self._has_values else 0
        return values, [(r.tree, r.first_row, r.data_blocks) for r in records]


@dataclasses.dataclass(frozen=True)
class Known:
    """What a process keeps of a version that it has read, to compare it with a later version."""

    structure: Structure
    tree: int
    tables: tuple[np.ndarray, ...]


class Reader:
    """A valid version, open for reading. Thread-safe."""

    def __init__(
        self,
        section: Section,
        records: list[Record],
        known: Known | None = None,
        structure: Structure | None = None,
    ):
        """Reads the directory, unless `structure` is that of another version of this name.

        `known` is an earlier version, whose arrays the caller still has. Then `is_unchanged` and
        `read` know which blocks have changed since.
        """
        self.records = records
        first = records[0]
        self.stripes = [stripes.Stripes.of(section, record) for record in records]
        for own in self.stripes:
            if own.first_row + own.num_rows > section.geometry.rows:
                raise errors.StoreError(
                    f"the record of process {own.writer} is damaged: restore an older version of"
                    " the data"
                )
        if structure is None and known is not None:
            structure = known.structure
        if structure is None or not structure.is_of(records):
            directory = self.stripes[0].read_range(
                first.data_blocks + first.table_blocks,
                first.directory_bytes,
                first.directory_checksum,
                "directory",
            )
            structure = Structure(directory, records, section.geometry.blocks_per_row)
        self.structure = structure
        self.leaves, self.writers = structure.leaves, structure.writers
        self._tables: dict[int, np.ndarray] = {}
        self._blocks: OrderedDict[tuple[int, int], np.ndarray] = OrderedDict()
        self._lock = threading.Lock()
        self._changed: list[np.ndarray] | None = None
        if known is not None and known.tree == first.tree:
            now = [self.table(writer) for writer in range(len(records))]
            self._changed = [a != b for a, b in zip(now, known.tables, strict=True)]

    def check_all(self, writer: int) -> None:
        """Checks all data that one process has written."""
        table, own = self.table(writer), self.stripes[writer]

        def check(blocks: range) -> None:
            scratch = np.empty(len(blocks) * layout.BLOCK_BYTES, np.uint8)
            own.read_all_checked(blocks, table[blocks.start : blocks.stop], scratch)

        for _ in _threads().map(check, geometry.consecutive(range(len(table)), _RUN)):
            pass  # Raises the error of a thread.

    def known(self) -> Known:
        """Returns what the reader of a later version needs, to read only what has changed."""
        tables = tuple(self.table(record.writer) for record in self.records)
        return Known(self.structure, self.records[0].tree, tables)

    def is_unchanged(self, leaf: leaves.Leaf) -> bool:
        """Returns whether an array is the same as in the version that the caller knows."""
        return self._changed is not None and not any(
            self._changed[part.writer][np.asarray(geometry.blocks_of(part))].any()
            for part in self.parts(leaf)
        )

    def parts(self, leaf: leaves.Leaf) -> list[place.Part]:
        """Returns where the bytes of an array are: the parts of its shards, shard by shard."""
        shards = range(len(leaf.shards))
        return [part for shard in shards for part in self.parts_of_shard(leaf, shard)]

    def parts_of_shard(self, leaf: leaves.Leaf, number: int) -> list[place.Part]:
        """Returns where the bytes of a shard are."""
        return self.structure.parts.get((leaf.name, number), [])

    def parts_of_rows(self, leaf: leaves.Leaf, rows: geometry.Rows) -> list[place.Part]:
        """Returns where rows of a shard are. `start` and `end` count bytes of the rows."""
        begin = rows.start * leaf.itemsize
        end = begin + math.prod(rows.shape) * leaf.itemsize
        found = []
        for part in self.parts_of_shard(leaf, rows.shard):
            first, last = max(begin, part.start), min(end, part.end)
            if first < last:
                offset = part.offset + first - part.start
                found.append(part._replace(start=first - begin, end=last - begin, offset=offset))
        return found

    def read(
        self, leaf: leaves.Leaf, index: leaves.Index, into: np.ndarray | None = None
    ) -> np.ndarray:
        """Returns a part of an array.

        The result is `into` if it is given: memory of the same shape and dtype. If the caller knows
        a version, `into` must have the part of that version. Then only what has changed is read.
        """
        if into is not None and self.is_unchanged(leaf):
            return into
        shape = geometry.shape_of(index)
        dtype = leaves.dtype_of(leaf.dtype)
        if into is None and (parts := self._parts_if_small(leaf, index)):
            data = np.empty(parts[-1].end, np.uint8)
            for part in parts:
                self._copy(data, part, geometry.blocks_of(part))
            return data.view(dtype).reshape(shape)
        own, out = self, into
        if out is None:
            own = self.forgetting()
            out = _empty(shape, dtype)
        # Rows of up to a block are read as a whole, even if only some of their elements are wanted.
        found = geometry.rows(leaf, index, layout.BLOCK_BYTES // dtype.itemsize)
        scratch = _empty((0,), dtype)  # for rows that cannot be read straight into the result
        for _, of_shard in itertools.groupby(found, lambda rows: rows.shard):
            work, rest = [], []
            for rows in of_shard:
                # The `...` makes the result an array even if it has no dimensions.
                there = out[(*geometry.slices(rows.there), ...)]
                if rows.is_whole and there.flags.c_contiguous:
                    work += own._work(leaf, rows, there)
                else:
                    rest.append((rows, there))
            size = sum(math.prod(rows.shape) for rows, _ in rest)
            if size > len(scratch):
                scratch = _empty((size,), dtype)
            read, left = [], scratch
            for rows, _ in rest:
                count = math.prod(rows.shape)
                read.append(left[:count].reshape(rows.shape))
                left = left[count:]
                work += self.forgetting()._work(leaf, rows, read[-1])
            self._copy_all(work)
            for (rows, there), data in zip(rest, read, strict=True):
                there[...] = data[(*geometry.slices(rows.here), ...)]
        return out

    def _work(
        self, leaf: leaves.Leaf, rows: geometry.Rows, out: np.ndarray
    ) -> list[tuple[np.ndarray, place.Part, np.ndarray | range]]:
        flat = out.reshape(-1).view(np.uint8)
        parts = self.parts_of_rows(leaf, rows)
        return [(flat, part, self.changed_blocks(part)) for part in parts]

    def _parts_if_small(self, leaf: leaves.Leaf, index: leaves.Index) -> list[place.Part]:
        """Returns the parts of a shard of at most a block, if it is what is wanted.

        In a tree of many leaves, most are such shards. They are read with little work.
        """
        for number, shard in enumerate(leaf.shards):
            if shard.index == index:
                parts = self.parts_of_shard(leaf, number)
                return parts if parts and parts[-1].end <= layout.BLOCK_BYTES else []
        return []

    def changed_blocks(self, part: place.Part) -> np.ndarray | range:
        """Returns the blocks of a part, without those that the caller has already."""
        blocks = geometry.blocks_of(part)
        if self._changed is None:
            return blocks
        changed = self._changed[part.writer][blocks.start : blocks.stop]
        return blocks if changed.all() else blocks.start + np.flatnonzero(changed)

    def forgetting(self) -> "Reader":
        """Returns a reader of the same version, whose caller knows no version."""
        if self._changed is None:
            return self
        other = copy.copy(self)
        other._changed = None
        return other

    def read_local(self, leaf: leaves.Leaf, index: leaves.Index, writer: int) -> np.ndarray:
        """Returns a part of a local array (`Leaf.local`), as the saving process `writer` had it."""
        return self.read(leaf, ((writer, writer + 1), *index))[0, ...]

    def read_same(
        self, leaf: leaves.Leaf, index: leaves.Index, into: np.ndarray | None = None
    ) -> np.ndarray:
        """Returns a part of an array that must have been the same in all saving processes.

        `into` is as for `read`.
        """
        if not leaf.local:
            return self.read(leaf, index, into)
        first = self.read_local(leaf, index, 0)
        for writer in range(1, len(self.writers)):
            other = self.read_local(leaf, index, writer)
            if first.tobytes() != other.tobytes():
                count = len(self.writers)
                raise errors.StoreError(
                    f"{leaf.name} has different values on processes {self.writers[writer]} and"
                    f" {self.writers[0]} of the {count} processes that saved it. To restore"
                    f" them, run {count} processes, each with a NumPy array or an array on its own"
                    " devices in `like`. Otherwise leave this leaf out of `like`"
                )
        if into is None:
            return first
        into[...] = first
        return into

    def compare(self, writer: int, blocks: range, values: Sequence[int]) -> None:
        """Compares checksums of blocks, which a GPU has computed, with those of the version."""
        found = np.array(values, np.uint64)
        wrong = np.flatnonzero(found != self.table(writer)[blocks.start : blocks.stop])
        if len(wrong):
            raise self.stripes[writer].damaged(blocks[int(wrong[0])])

    def checks_of(self, writer: int, blocks: Sequence[int]) -> Iterator[None]:
        """Starts to check blocks that are used in place, and makes them visible to this host.

        The result ends with the last check.
        """
        table, own = self.table(writer), self.stripes[writer]

        def check(some: Sequence[int]) -> None:
            scratch = np.empty(layout.BLOCK_BYTES, np.uint8)
            for block in some:
                own.section.devices.read_into(*own.place(block), scratch)
                own.check(block, int(table[block]), scratch)

        return _threads().map(check, (blocks[at : at + _RUN] for at in range(0, len(blocks), _RUN)))

    def _copy_all(self, of: Iterable[tuple[np.ndarray, place.Part, np.ndarray | range]]) -> None:
        """Copies blocks of parts into memory that has the bytes which the parts count."""
        work = [
            (out, part, run)
            for out, part, blocks in of
            for run in geometry.consecutive(blocks, _RUN)
        ]
        # Threads would take longer to start.
        if (
            len(work) == 1
            or sum(part.end - part.start for _, part, _ in work) <= layout.BLOCK_BYTES
        ):
            for item in work:
                self._copy(*item)
            return
        for _ in _threads().map(lambda item: self._copy(*item), work):
            pass  # Raises the error of a thread.

    def _copy(self, out: np.ndarray, part: place.Part, blocks: range) -> None:
        """Copies those bytes of a part that lie in some consecutive blocks."""
        size = layout.BLOCK_BYTES
        to = part.start - part.offset
        whole, edges = geometry.whole_blocks(*part.bytes_in(blocks))
        for block in edges:
            first, last = part.bytes_in(range(block, block + 1))
            data = self._shared_block(part.writer, block)
            out[first + to : last + to] = data[first - block * size : last - block * size]
        if whole:
            expected = self.table(part.writer)[whole.start : whole.stop]
            there = out[whole.start * size + to : whole.stop * size + to]
            self.stripes[part.writer].read_all_checked(whole, expected, there)

    def _shared_block(self, writer: int, block: int) -> np.ndarray:
        """Returns a block that may contain bytes of several parts, if possible from the cache."""
        with self._lock:
            if (writer, block) in self._blocks:
                return self._blocks[writer, block]
        data = np.empty(layout.BLOCK_BYTES, np.uint8)
        expected = self.table(writer)[block : block + 1]
        self.stripes[writer].read_all_checked(range(block, block + 1), expected, data)
        with self._lock:
            self._blocks[writer, block] = data
            if len(self._blocks) > _KEPT_BLOCKS:
                self._blocks.popitem(last=False)
        return data

    def table(self, writer: int) -> np.ndarray:
        """Returns the checksums of a writer's blocks."""
        with self._lock:
            if writer not in self._tables:
                self._tables[writer] = self.stripes[writer].read_table(self.records[writer])
            return self._tables[writer]


@functools.cache
def _threads() -> "concurrent.futures.ThreadPoolExecutor":
    import concurrent.futures

    return concurrent.futures.ThreadPoolExecutor(min(8, os.cpu_count() or 1), "jax_cxl restore")


os.register_at_fork(after_in_child=_threads.cache_clear)  # A child does not have the threads.


def _empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Returns an array whose memory XLA can use as it is, without a copy."""
    size = math.prod(shape) * dtype.itemsize
    raw = np.empty(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size].view(dtype).reshape(shape)
