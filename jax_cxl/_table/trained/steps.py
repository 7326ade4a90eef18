"""Steps that change the rows of a table, taken by all processes of a job together.

The rows of a table are divided into parts (`region.py`), and the parts among the processes of the
job. So each row has one process as its owner. A step is written in four moves. Between two moves,
all processes wait for each other:

1. Each owner computes its new rows, and writes them into the journal.
2. The first process commits the step: it writes the journal's entry, and then the step's number.
3. Each owner copies its new rows into the table. Before and after the copy, it stores the number of
   the step in the words of the parts.
4. The first process says that the step was applied. The next step may overwrite the journal.

If the job ends before the second move, no row has changed. If it ends later, the next job copies
the new rows from the journal again. A reader copies a row, and copies it again if the words of its
part say that a step began meanwhile. So it never returns a row that mixes two steps.
"""

import struct
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jax_cxl import errors
from jax_cxl._store import agreement
from jax_cxl._store.memory import checksum, layout
from jax_cxl._store.writing import fence
from jax_cxl._table.columns import Column
from jax_cxl._table.trained import merging
from jax_cxl._table.trained.region import Entry, Region

# Rows of this process, the sums of their gradients, and their state -> new rows and new state.
Rule = Callable[[Any, Any, dict[str, Any]], tuple[Any, dict[str, Any]]]


class Steps:
    """The steps of one job. The job has claimed the table until `close`."""

    def __init__(self, region: Region, columns: list[Column]):
        """Claims the table, on all processes or on none, and completes a step of an earlier job."""
        self._region, self._columns = region, columns
        self._writers = tuple(agreement.processes())
        self._own = self._writers.index(jax.process_index())
        self.job = agreement.job()
        # Threads may change different tables, each process in another order.
        self._topic = f"a step of table {region.section.entry.name!r}"
        with agreement.topic(f"the claim of {self._topic}", name=self._topic):
            self._claim()

    def close(self) -> None:
        """Lets other jobs change the table."""
        section = self._region.section
        if section.claim is not None and self._own == 0:
            fence.release(section, section.claim)
        section.claim = None

    def take(self, prepare: Callable[[], tuple[np.ndarray, np.ndarray]], rule: Rule) -> int:
        """Takes a step; returns its number. All processes call it at the same place.

        `prepare` returns the numbers of the rows that this process updates, as an int64 vector (-1:
        no row), and an update of the shape of a row for each number.
        """
        region = self._region

        def write_journal() -> np.ndarray:
            inside = ids >= 0
            of_rows = region.plan.columns[0].dtype
            unique, sums = merging.merge(ids[inside], updates[inside], of_rows)
            if len(unique) > region.plan.step_rows:
                raise ValueError(
                    f"the step changes {len(unique)} different rows, and the table was made with"
                    f" step_rows={region.plan.step_rows}: change fewer rows, or make the table with"
                    " larger step_rows"
                )
            first, last = self._places(unique, self._own, len(self._writers))
            if first < last:
                new = self._new(unique[first:last], sums[first:last], rule)
                for number, rows in enumerate(new):
                    region.write(region.plan.new(number, first, self._own), rows)
            if self._own == 0:
                region.write(region.plan.ids, unique)
            return unique

        with agreement.topic(self._topic):
            step = region.applied + 1
            ids, updates = self._exchange(*self._together(prepare))
            unique = self._together(write_journal)
            entry = Entry(step, len(unique), len(self._writers), checksum.of(unique))
            self._together(lambda: self._commit(entry))
            self._together(lambda: self._apply(unique, self._own, entry))
            self._together(lambda: self._finish(step))
        return step

    def _claim(self) -> None:
        section = self._region.section

        def claim() -> bytes:
            if self._own != 0:
                return b""
            fence.take_alone(section)
            assert section.claim is not None
            self._complete()
            return section.claim.to_bytes()

        section.claim = layout.Claim.from_bytes(agreement.gather_bytes(self._together(claim))[0])

    def _complete(self) -> None:
        """Copies into the table the new rows of a step that an earlier job has committed."""
        region = self._region
        step = region.committed
        if step == region.applied:
            return
        entry = region.entry
        damaged = errors.StoreError(f"the journal of {region.section.text} is damaged")
        if entry is None or entry.step != step or entry.count > region.plan.step_rows:
            raise damaged
        ids = region.read(region.plan.ids, 8 * entry.count).view(np.int64)
        if checksum.of(ids) != entry.ids:
            raise damaged
        for owner in range(entry.owners):
            self._apply(ids, owner, entry)
        region.applied = step

    def _exchange(self, ids: np.ndarray, updates: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns ids and updates of all processes, in the order of the processes."""
        if len(self._writers) == 1:
            return ids, updates
        name = updates.dtype.name.encode().ljust(24)
        data = struct.pack("<Q", len(ids)) + name + ids.tobytes() + updates.tobytes()
        told = agreement.gather_bytes(data)
        for side, other in enumerate(told):
            if other[8:32] != told[0][8:32]:
                texts = [f"updates of {of[8:32].decode().strip()}" for of in (told[0], other)]
                raise agreement.mismatch(
                    self._writers, (0, side), texts, "change a table with different dtypes"
                )
        counts = [struct.unpack_from("<Q", other)[0] for other in told]
        found = [
            (
                np.frombuffer(other, np.int64, count, 32),
                np.frombuffer(other[32 + 8 * count :], updates.dtype).reshape(
                    count, *updates.shape[1:]
                ),
            )
            for other, count in zip(told, counts, strict=True)
        ]
        return np.concatenate([a for a, _ in found]), np.concatenate([b for _, b in found])

    def _places(self, ids: np.ndarray, owner: int, owners: int) -> tuple[int, int]:
        """Returns where, among ascending ids, those of an owner begin and end."""
        first, last = np.searchsorted(ids, self._region.plan.rows_of(owner, owners))
        return int(first), int(last)

    def _new(self, ids: np.ndarray, sums: np.ndarray, rule: Rule) -> list[np.ndarray]:
        """Returns the new rows of each column."""
        described = self._region.plan.columns
        old = [column.read(ids) for column in self._columns]
        names = [column.name for column in described[1:]]
        rows, state = rule(old[0], sums, dict(zip(names, old[1:], strict=True)))
        if not isinstance(state, dict) or set(state) != set(names):
            raise ValueError(
                f"the rule must return two values: the new rows, and a dict with the keys {names}"
                " for the new state"
            )
        new = [np.ascontiguousarray(x) for x in (rows, *(state[name] for name in names))]
        for of, x in zip(described, new, strict=True):
            if (x.dtype, x.shape) != (of.dtype, (len(ids), *of.row_shape)):
                raise ValueError(
                    f"the rule must return {of.name} as {of.dtype} of shape"
                    f" {(len(ids), *of.row_shape)}, not {x.dtype} of shape {x.shape}"
                )
        return new

    def _commit(self, entry: Entry) -> None:
        if self._own == 0:
            self._region.entry = entry
            self._region.committed = entry.step

    def _finish(self, step: int) -> None:
        if self._own == 0:
            self._region.applied = step

    def _apply(self, ids: np.ndarray, owner: int, entry: Entry) -> None:
        """Copies the new rows of an owner from the journal into the table."""
        first, last = self._places(ids, owner, entry.owners)
        own = ids[first:last]
        if not len(own):
            return
        region, plan = self._region, self._region.plan
        parts = np.unique(own // plan.rows_of_part)
        region.begin(parts, entry.step)
        for number, column in enumerate(self._columns):
            size = len(own) * plan.columns[number].row_bytes
            column.write(own, region.read(plan.new(number, first, owner), size))
        region.finish(parts, entry.step)

    def _together(self, move: Callable[[], Any]) -> Any:
        return agreement.on_all(self._writers, move, "could not change the table")
