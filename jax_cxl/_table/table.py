"""Tables in a store, of which programs take rows."""

from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from jax_cxl import errors
from jax_cxl._store import following, views
from jax_cxl._store.memory import catalog
from jax_cxl._store.memory.devices import Devices
from jax_cxl._store.memory.section import Section
from jax_cxl._store.store import Store
from jax_cxl._table import creating, gather, sources
from jax_cxl._table.columns import Column, identity_of

_ROWS, _SCALES = "rows", "scales"


class Table:
    """Rows in a memory pool, of which programs of any job take some by their numbers.

    All processes and hosts read one copy. The rows are no operand of a program, so XLA never copies
    the table, and it may be larger than the memory of any device. docs/tables.md says more.

    Attributes:
      name: the name.
      shape: the shape of all rows together: (R, ...).
      dtype: the dtype in which they are stored.
    """

    def __init__(self, name: str, columns: dict[str, Column], held: Any):
        """Private: use `Table.create` or `Table.open`."""
        self.name = name
        self._columns = columns
        self._held = held
        rows = columns[_ROWS]
        self.shape: tuple[int, ...] = (rows.rows, *rows.row_shape)
        self.dtype = rows.dtype

    @classmethod
    def create(
        cls,
        store: Store | str,
        name: str,
        rows: Any,
        *,
        shape: tuple[int, ...] | None = None,
        dtype: Any = None,
        tensor: str | None = None,
        scales: Any = None,
    ) -> Self:
        """Writes a new table into a store, and opens it.

        One process calls it. Rows from an iterator or a file are written a block at a time, so that
        the table may be larger than the memory of this process. Other processes see the table once
        it is complete.

        Args:
          store: a `jax_cxl.Store`, or its URI. The store has one path.
          name: 1 to 128 printable bytes.
          rows: the rows: an array of shape (R, ...); an iterator of such arrays, which follow each
            other; or the path of a file .npy or .safetensors. Elements have any dtype of whole or
            half bytes. An element of half a byte takes one.
          shape: shape of all rows, which an iterator needs.
          dtype: their dtype, which an iterator needs, and a file .npy of another dtype than NumPy's.
          tensor: name of the tensor in a file .safetensors that has several.
          scales: array of shape (R,) or (R, ..., G), by which the rows are multiplied when they are
            taken. The last dimension of rows is divided into G equal blocks, each of which has a
            scale. For example rows in float8_e4m3fn with scales in float32.

        Returns:
          The open table.

        Raises:
          StoreError: the store has the name already, or has several paths.
          PoolTooSmallError: there is no room for the table.
          OSError: a file cannot be read.
          TypeError, ValueError: an argument is wrong. Then the store has no such table.

        Example:
          >>> table = jax_cxl.Table.create(
          ...     "shm:tables?size=64MiB", "squares", jnp.arange(10)[:, None] ** 2
          ... )
          >>> jax.jit(table.take)(jnp.array([[3, 9], [0, -1]]))[..., 0]
          Array([[ 9, 81],
                 [ 0, 81]], dtype=int32)
        """
        devices = _devices(store)
        name = catalog.check_name(name)
        found = {_ROWS: sources.of(rows, shape, dtype, tensor)}
        if scales is not None:
            found[_SCALES] = sources.of(scales)
            _check_scales(found[_ROWS], found[_SCALES])
        creating.write_arrays(devices, name, found)
        return cls.open(store if isinstance(store, Store) else devices, name)

    @classmethod
    def open(cls, store: "Store | str | Devices", name: str, *, timeout: float = 0) -> Self:
        """Opens a table, in any process of any job.

        All rows are checked once by their checksums, which reads all bytes.

        Args:
          store: a `jax_cxl.Store`, or its URI.
          name: the name.
          timeout: how many seconds to wait until another process has made the table.

        Raises:
          StoreError: there is no such table, or it is damaged.
          StoreTimeoutError: it was not complete in time.
          TypeError, ValueError: an argument is wrong.
        """
        devices = _devices(store)
        name = catalog.check_name(name)
        seconds = following.seconds_of(timeout)
        if seconds:
            following.wait(devices, name, -1, seconds)
        view = views.view(devices, name, None, None)
        section = Section.find(devices, name)
        if section is None or section.entry.keep or _ROWS not in view.tree:
            raise errors.StoreError(f"{name!r} of {devices.where!r} is no table: read it instead")
        identity = identity_of(section.entry.identity)
        columns = {
            column: Column(
                devices, (identity, number), _address(array), array.shape, array.dtype, array
            )
            for number, (column, array) in enumerate(view.tree.items())
        }
        return cls(name, columns, view)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Table({self.name!r}, {self._columns[_ROWS]!r})"

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
            error names the id; ids from -R to -1 count from the end. On GPUs the program then waits
            for the call.
          fill_value: a number; by default that of `jnp.take`: NaN, the least number of a signed
            dtype, the greatest of an unsigned one, or True.
          dtype: dtype of the result, by default that of the table, or float32 if it has scales.
          delta: None, or an array of the shape of the result, of any float dtype. Its values are not
            used. Its gradient is that of the rows: docs/tables.md has an example.

        Returns:
          An array of shape (*ids.shape, ...): a row for each id.

        Raises:
          TypeError: ids are no integers, or JAX does not have the dtype of the rows.
          ValueError: an argument is wrong.
          StoreError: the table was closed.
          InvalidCollectiveError: from the program, in mode "error": an id is outside of the table.

        Example:
          >>> table = jax_cxl.Table.open("shm:tables", "squares")
          >>> table.take(jnp.array([2, 10]), mode="clip")
          Array([[ 4],
                 [81]], dtype=int32)
        """
        how = gather.mode_of(mode)
        rows = self._columns[_ROWS]
        rows.check_open()
        if fill_value is not None and (how is not gather.Mode.FILL or np.ndim(fill_value)):
            raise ValueError(f"fill_value={fill_value!r} must be a number, and mode be 'fill'")
        ids = gather.checked_ids(rows, ids)
        if how is gather.Mode.CLIP and not rows.rows and ids.size:
            raise ValueError("mode='clip' needs a table that has rows")
        if _SCALES in self._columns:
            taken = self._take_scaled(ids, how, fill_value, dtype or np.float32)
        else:
            taken = gather.take(rows, ids, how, fill_value)
        if dtype is not None:
            taken = taken.astype(dtype)
        return taken if delta is None else _with_gradient(taken, jnp.asarray(delta))

    def check(self) -> None:
        """Checks that the rows were not overwritten, after this process stood still for long.

        Raises:
          StoreError: they may have been. Open the table again, and compute again what was computed
            from it.
        """
        self._held.check()

    def close(self) -> None:
        """Waits until no program takes rows, and gives the table up.

        Programs that take rows of it fail from then on.
        """
        for column in self._columns.values():
            column.close()
        self._held.close()

    def _take_scaled(self, ids: Any, how: gather.Mode, fill_value: Any, dtype: Any) -> Any:
        rows, scales = self._columns[_ROWS], self._columns[_SCALES]
        # An id outside of the table fails once.
        taken = gather.take(rows, ids, how, 0 if how is gather.Mode.FILL else None)
        wide = jnp.promote_types(np.float32, scales.dtype)
        by = gather.take(scales, ids, gather.Mode.CLIP).astype(wide)
        if scales.row_shape:
            by = jnp.repeat(by, rows.row_shape[-1] // scales.row_shape[-1], axis=-1)
        else:
            by = by.reshape(*ids.shape, *(1,) * len(rows.row_shape))
        scaled = taken.astype(wide) * by
        if how is gather.Mode.FILL:
            inside = (ids >= -rows.rows) & (ids < rows.rows)
            inside = inside.reshape(*ids.shape, *(1,) * len(rows.row_shape))
            scaled = jnp.where(inside, scaled, np.nan if fill_value is None else fill_value)
        return scaled.astype(dtype)


def _devices(store: Any) -> Devices:
    if isinstance(store, Devices):
        return store
    if not isinstance(store, Store):
        store = Store(store)
    devices: Devices = store._devices
    if devices.count != 1:
        raise errors.StoreError(
            f"{devices.where!r} has {devices.count} devices: a table needs a store of one path"
            " without devices_per_path"
        )
    return devices


def _address(array: np.ndarray) -> int:
    return array.ctypes.data if array.size else 0


def _check_scales(rows: sources.Source, scales: sources.Source) -> None:
    floats = jnp.issubdtype(scales.dtype, np.floating)
    per_row = scales.shape == rows.shape[:1]
    per_block = (
        len(scales.shape) == len(rows.shape) > 1
        and scales.shape[:-1] == rows.shape[:-1]
        and scales.shape[-1] > 0
        and rows.shape[-1] % scales.shape[-1] == 0
    )
    if not floats or not (per_row or per_block) or jnp.issubdtype(rows.dtype, np.complexfloating):
        raise ValueError(
            f"scales of {scales.dtype}{list(scales.shape)} do not fit rows of"
            f" {rows.dtype}{list(rows.shape)}: they must be floats of shape (R,) or (R, ..., G),"
            " where G divides the last dimension of the rows"
        )


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
