"""Programs take rows of a table."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_cxl._lowering.start_done import future
from jax_cxl._table import gather, scaling
from jax_cxl._table.open_table import ROWS, SCALES, OpenTable


class Taking(OpenTable):
    """The part of `Table` that takes rows."""

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
          dtype: dtype of the result, by default that of the table, or float32 if it has scales.
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
        if SCALES in self._columns:
            taken = scaling.take(
                rows, self._columns[SCALES], ids, how, fill_value, dtype or np.float32
            )
        else:
            taken = gather.take(rows, ids, how, fill_value)
        if dtype is not None:
            taken = taken.astype(dtype)
        return taken if delta is None else _with_gradient(taken, jnp.asarray(delta))


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
