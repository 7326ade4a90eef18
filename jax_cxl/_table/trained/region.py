"""The memory of a trained table.

The table's version is a tree with one value, which describes the table. The memory that changes
follows the blocks of this tree, and has no checksums:

    header     the last step that was committed, and the last that was applied
    journal    the entry of the last committed step
    words      for each part of the rows, the step that changes it (cc/store/table/column.h)
    columns    the rows, and the state of an optimizer, one array after another
    ids, new   what the last step changes: numbers of rows, and what they become in each column

A part consists of consecutive rows (`Plan.rows_of_part`). `steps.py` says how a step writes the
journal, the words, the columns, the ids and the new rows.
"""

import dataclasses
import functools
import json
import math
import struct
from typing import Any, Self

import numpy as np

from jax_cxl import errors
from jax_cxl._store import arguments
from jax_cxl._store.memory import checksum, layout
from jax_cxl._store.memory.section import Section
from jax_cxl._store.trees import leaves
from jax_cxl._table.sources import Source

_PARTS = 1024
# Bytes of a cache line. Two owners of rows (`steps.py`) may be on hosts whose caches are not
# coherent, so they must not write to the same line.
_LINE = 64
WORDS_BYTES = 128
_FINISHED = 64  # offset of the word `finished`; the word `begun` is at 0
_COMMITTED, _APPLIED, _ENTRY = 0, 128, 256
_ENTRY_BYTES = 64


@dataclasses.dataclass(frozen=True)
class Described:
    """A column."""

    name: str
    dtype: np.dtype
    row_shape: tuple[int, ...]

    @property
    def row_bytes(self) -> int:
        return math.prod(self.row_shape) * self.dtype.itemsize


@dataclasses.dataclass(frozen=True)
class Plan:
    """How the memory is divided. The column of the rows comes first, then those of the state."""

    rows: int
    columns: tuple[Described, ...]
    step_rows: int

    @property
    def rows_of_part(self) -> int:
        """How many rows share a word."""
        return _round_up(max(1, -(-self.rows // _PARTS)), _LINE)

    @property
    def parts(self) -> int:
        return -(-self.rows // self.rows_of_part)

    @functools.cached_property
    def _offsets(self) -> list[int]:
        """Where words, columns, ids and new rows begin, and the end."""
        sizes = [layout.PAGE_BYTES, self.parts * WORDS_BYTES]
        sizes += [self.rows * column.row_bytes for column in self.columns]
        sizes += [8 * self.step_rows]
        between = (layout.MAX_PROCESSES + 1) * _LINE
        sizes += [self.step_rows * column.row_bytes + between for column in self.columns]
        offsets = [0]
        for size in sizes:
            offsets.append(offsets[-1] + _round_up(size, layout.PAGE_BYTES))
        return offsets[1:]

    @property
    def words(self) -> int:
        return self._offsets[0]

    def column(self, number: int) -> int:
        """Where a column begins."""
        return self._offsets[1 + number]

    @property
    def ids(self) -> int:
        """Where the numbers of changed rows begin."""
        return self.column(len(self.columns))

    def new(self, number: int, first: int, owner: int) -> int:
        """Where the new rows of an owner begin in a column, after `first` rows of owners before."""
        before = _round_up(first * self.columns[number].row_bytes, _LINE) + owner * _LINE
        return self._offsets[2 + len(self.columns) + number] + before

    def rows_of(self, owner: int, owners: int) -> np.ndarray:
        """Returns the first row of an owner, and the row after its last one."""
        parts = np.array([owner, owner + 1]) * self.parts // owners
        return np.minimum(parts * self.rows_of_part, self.rows)

    @property
    def bytes(self) -> int:
        """Bytes of all of this memory."""
        return self._offsets[-1]

    @classmethod
    def of(cls, rows: Source, state: dict[str, Source], step_rows: Any) -> Self:
        """Returns the plan of a new table."""
        most = arguments.whole("step_rows", step_rows)
        if most < 1:
            raise ValueError(f"step_rows={most} must be at least 1")
        columns = {"rows": rows, **state}
        described = (Described(k, x.dtype, tuple(x.shape[1:])) for k, x in columns.items())
        return cls(rows.shape[0], tuple(described), min(most, max(1, rows.shape[0])))

    def to_text(self) -> str:
        """Returns the description as text, which the tree of the table holds."""
        columns = [[c.name, c.dtype.name, c.row_shape] for c in self.columns]
        return json.dumps([self.rows, columns, self.step_rows])

    @classmethod
    def from_text(cls, text: str) -> Self:
        try:
            rows, columns, step_rows = json.loads(text)
            described = tuple(
                Described(str(name), leaves.dtype_of(dtype), tuple(map(int, shape)))
                for name, dtype, shape in columns
            )
            plan = cls(int(rows), described, int(step_rows))
            sizes = (plan.rows, *(n for column in described for n in column.row_shape))
            if min(sizes) < 0 or plan.step_rows < 1 or described[0].name != "rows":
                raise ValueError("the table's description is wrong")
            return plan
        except (TypeError, LookupError, AttributeError) as error:
            raise ValueError(f"the table's description cannot be read: {error}") from error


@dataclasses.dataclass(frozen=True)
class Entry:
    """The entry of the journal: it has all new rows of a step, and the checksum of their ids."""

    step: int
    count: int
    owners: int
    ids: int

    _FORMAT = struct.Struct("<4Q")

    def to_bytes(self) -> bytes:
        """Returns the entry. Its first word is the step."""
        return checksum.seal(self._FORMAT.pack(*dataclasses.astuple(self)), _ENTRY_BYTES)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self | None:
        """Reads an entry; returns None if the bytes are not an entry."""
        if not checksum.is_sealed(data):
            return None
        return cls(*cls._FORMAT.unpack_from(data))


def _round_up(size: int, to: int) -> int:
    return -(-size // to) * to


def _step_at(offset: int, doc: str) -> Any:
    """Returns a property of `Region`: the number of a step in a word."""

    def load(self: "Region") -> int:
        return self._devices.load_word(0, self.start + offset)

    def store(self: "Region", step: int) -> None:
        self.section.check_fence(0)
        self._store_word(offset, step)

    return property(load, store, doc=doc)


class Region:
    """The memory of an open table, from `start` on its device."""

    def __init__(self, section: Section, plan: Plan, start: int):
        if start + plan.bytes > section.geometry.end:
            raise errors.StoreError(
                f"the description of {section.text} is damaged: delete the table, and make it again"
            )
        self.section, self.plan, self.start = section, plan, start
        self._devices = section.devices

    def address(self, offset: int) -> int:
        address: int = self._devices.core.address(0, self.start + offset)
        return address

    def write(self, offset: int, data: np.ndarray) -> None:
        """Writes bytes, unless another job has claimed the table."""
        if data.size:
            self.read(offset, data.nbytes)  # see `_store_word`
            self.section.write(0, self.start + offset, data.reshape(-1).view(np.uint8))

    def read(self, offset: int, size: int) -> np.ndarray:
        """Returns a private copy of bytes."""
        return self._devices.read(0, self.start + offset, size)

    committed = _step_at(_COMMITTED, "The last step that was committed.")
    applied = _step_at(_APPLIED, "The last step that all rows include.")

    @property
    def entry(self) -> Entry | None:
        """The entry of the journal."""
        data = self._devices.read_entry(0, self.start + _ENTRY, _ENTRY_BYTES)
        return Entry.from_bytes(data) if data else None

    @entry.setter
    def entry(self, entry: Entry) -> None:
        self.read(_ENTRY, _ENTRY_BYTES)  # see `_store_word`
        self.section.write_entry(0, self.start + _ENTRY, entry.to_bytes())

    def begin(self, parts: np.ndarray, step: int) -> None:
        """Announces that a step changes rows of these parts from now on."""
        self._store(parts, 0, step)

    def finish(self, parts: np.ndarray, step: int) -> None:
        """Announces that the rows of these parts now include a step."""
        self._store(parts, _FINISHED, step)

    def _store(self, parts: np.ndarray, word: int, step: int) -> None:
        self.section.check_fence(0)
        for part in parts.tolist():
            self._store_word(self.plan.words + part * WORDS_BYTES + word, step)

    def _store_word(self, offset: int, value: int) -> None:
        # A host of an earlier job may have written to this cache line. Without this load, a host
        # whose cache is not coherent would write its old copy of the line back.
        self._devices.load_word(0, self.start + offset)
        self._devices.store_word(0, self.start + offset, value)

    def clear(self) -> None:
        """Writes zeros into the header, the entry of the journal and the words of a new table."""
        self.write(0, np.zeros(self.plan.column(0), np.uint8))
