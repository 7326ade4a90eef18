"""An open table: what it is, and what a process reads from it."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from jax_cxl import errors
from jax_cxl._store import views
from jax_cxl._table import sources
from jax_cxl._table.columns import Column, TableStats
from jax_cxl._table.trained import region

ROWS, SCALES = "rows", "scales"  # names of columns


class OpenTable:
    """The part of `Table` that needs no program: it describes, reads and checks a table."""

    def __init__(
        self,
        name: str,
        columns: dict[str, Column],
        held: views.View,
        memory: region.Region | None = None,
    ) -> None:
        """Private: use `Table.create` or `Table.open`."""
        self.name = name
        self._columns = columns
        self._held = held
        self._memory = memory
        rows = columns[ROWS]
        self.shape: tuple[int, ...] = (rows.rows, *rows.row_shape)
        self.dtype = rows.dtype

    def __repr__(self) -> str:
        return f"Table({self.name!r}, {self._columns[ROWS]!r})"

    def refresh_cache(self) -> None:
        """Fills the cache of each device with the rows that it took most often lately.

        The cache is empty before the first call, and stays as it is between two calls. Call it
        after some steps of the program, and again when other rows are wanted. It waits for the
        programs that run on the device. Programs that start meanwhile take all rows from the pool.

        Raises:
          StoreError: the table was closed, or was opened without cache_rows.

        Example:
          >>> table = jax_cxl.Table.open("shm:tables", "squares", cache_rows=2)
          >>> ids = jnp.array([3, 3, 7, 7, 7])
          >>> rows = table.take(ids).block_until_ready()
          >>> table.refresh_cache()
          >>> rows = table.take(ids).block_until_ready()
          >>> table.stats().cache_hit_rate
          0.5
        """
        if not self._columns[ROWS].has_cache:
            raise errors.StoreError(
                f"{self.name!r} was opened without cache_rows: pass it to Table.open"
            )
        for column in self._columns.values():
            column.refresh_cache()

    def stats(self) -> TableStats:
        """Returns how many rows this process has taken so far, and how often a cache had them.

        If the table is open several times in this process, programs use the caches of the `Table`
        that was opened last.

        Raises:
          StoreError: the table was closed.
        """
        return self._columns[ROWS].stats()

    def view(self) -> np.ndarray:
        """Returns the rows as a read-only NumPy array over the memory, without a copy.

        The rows stay as they are as long as the array lives.

        Raises:
          StoreError: the table was closed, or it is a trained one, whose rows change.
        """
        self._columns[ROWS].check_open()
        if self._memory is not None:
            raise errors.StoreError(
                f"{self.name!r} is a trained table, whose rows change: use read() and not view()"
            )
        rows: np.ndarray = self._held.tree[ROWS]
        return rows

    def read(self, ids: Any = None) -> dict[str, np.ndarray]:
        """Returns rows, with their scales or their state, as NumPy arrays.

        If the table is trained, call it while no step is under way.

        Args:
          ids: vector of rows from 0 to R - 1; None for all.

        Returns:
          A dict with "rows", and with "scales" or the arrays of the state.
        """
        rows = self.shape[0]
        sources.check_no_mask(ids)
        at = np.arange(rows) if ids is None else np.asarray(ids)
        if at.ndim != 1 or not jnp.issubdtype(at.dtype, np.integer):
            raise ValueError(f"ids must be a vector of integers, got {at.dtype}{list(at.shape)}")
        if at.size and (at.min() < 0 or at.max() >= rows):
            raise ValueError(f"ids must be from 0 to {rows - 1}")
        return {name: column.read(at.astype(np.int64)) for name, column in self._columns.items()}

    def check(self) -> None:
        """Checks that the rows were not overwritten while this process was stopped.

        Raises:
          StoreError: the rows may have been overwritten. Open the table again, and compute again
            everything that was computed from it.
        """
        self._held.check()
