"""An open table: what it is, the rows that programs take, and what a process reads."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_cxl import errors
from jax_cxl._lowering.start_done import future
from jax_cxl._store import views
from jax_cxl._table import gather, sources
from jax_cxl._table.columns import Column, TableStats
from jax_cxl._table.trained import region

ROWS = "rows"  # name of the first column


class OpenTable:
    """The part of `Table` that changes no rows."""

    def __init__(
        self,
        name: str,
        held: views.View,
        columns: dict[str, Column],
        memory: region.Region | None = None,
    ) -> None:
        """Private: use `Table.create` or `Table.open`."""
        self.name = name
        self._held = held
        self._columns = columns
        self._memory = memory
        rows = columns[ROWS]
        self.shape: tuple[int, ...] = (rows.rows, *rows.row_shape)
        self.dtype = rows.dtype

    def __repr__(self) -> str:
        return f"Table({self.name!r}, {self._columns[ROWS]!r})"

    @future.startable
    def take(
        self,
        ids: Any,
        *,
        mode: str = "fill",
        fill_value: Any = None,
        dtype: Any = None,
        delta: Any = None,
    ) -> Any:
        """Takes rows, as `jnp.take(rows, ids, axis=0, mode=mode)` does.

        It works outside and inside of `jax.jit`, `jax.shard_map`, `jax.vmap`, `jax.lax.scan` and so
        on. Each device takes the rows of its own ids. No other process takes part.

        Args:
          ids: integers of any shape and integer dtype.
          mode: what a row outside of the table becomes. "fill": `fill_value`; ids from -R to -1
            count from the end. "clip": the first or the last row. "error": the call fails, and the
            error names the id; ids from -R to -1 count from the end. In this mode, a program on
            GPUs waits for the call.
          fill_value: a number; by default that of `jnp.take`: NaN, the least number of a signed
            dtype, the greatest of an unsigned one, or True.
          dtype: dtype of the result, by default that of the table.
          delta: None, or an array of the shape of the result, of any float dtype. Its values are
            not used. Its gradient is the gradient of the rows: docs/tables.md has an example.

        Returns:
          An array of shape (*ids.shape, ...): a row for each id.

        Raises:
          TypeError: ids are not integers, or JAX does not have the dtype of the rows.
          ValueError: an argument is wrong.
          StoreError: the table was closed.
          InvalidCollectiveError: from the program, in mode "error": an id is outside of the table.
          PoolCorruptError: from the program: the table's file was cut short, deleted or replaced,
            or its memory failed.

        Example:
          >>> table = jax_cxl.Table.open("shm:tables", "squares")
          >>> table.take(jnp.array([2, 10]), mode="clip")
          Array([[ 4],
                 [81]], dtype=int32)
        """
        how = gather.mode_of(mode)
        rows = self._columns[ROWS]
        rows.check_open()
        if fill_value is not None and (how is not gather.Mode.FILL or np.ndim(fill_value)):
            raise ValueError(f"fill_value={fill_value!r} must be a number, and mode must be 'fill'")
        ids = gather.checked_ids(rows, ids)
        if how is gather.Mode.CLIP and not rows.rows and ids.size:
            raise ValueError("mode='clip' needs a table that has rows")
        taken = gather.take(rows, ids, how, fill_value)
        if dtype is not None:
            taken = taken.astype(dtype)
        return taken if delta is None else _with_gradient(taken, jnp.asarray(delta))

    def refresh_cache(self) -> None:
        """Fills the cache of each GPU with the rows that it took most often lately.

        The cache is empty before the first call, and stays as it is between two calls. Call it
        after some steps of the program, and again when other rows are wanted. It waits for the
        programs that run on the GPU. Programs that start meanwhile take all rows from the pool.

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
        if not self.stats().cache_rows:
            raise errors.StoreError(
                f"{self.name!r} was opened without cache_rows: pass it to Table.open"
            )
        self._columns[ROWS].refresh_cache()

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
        """Returns rows, with their state, as NumPy arrays.

        As for `take`, each row of a trained table includes all of a step or nothing of it. If all
        rows must be of the same step, call it while no step is under way.

        Args:
          ids: vector of rows from 0 to R - 1; None for all.

        Returns:
          A dict with "rows", and with the arrays of the state of a trained table.

        Raises:
          CollectiveTimeoutError: a step does not end, perhaps because its job has died.
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


@jax.custom_jvp
def _with_gradient(rows: Any, delta: Any) -> Any:
    if delta.shape != rows.shape or not jnp.issubdtype(delta.dtype, np.inexact):
        raise ValueError(
            f"delta must be an array of floats of the shape {rows.shape}, got"
            f" {delta.dtype}{list(delta.shape)}"
        )
    return rows.astype(delta.dtype)


@_with_gradient.defjvp
def _with_gradient_jvp(primals: Any, tangents: Any) -> Any:
    return _with_gradient(*primals), tangents[1]
