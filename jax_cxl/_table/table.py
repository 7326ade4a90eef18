"""Tables in a store, from which programs take rows, and which steps change."""

import functools
import time
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from jax_cxl import errors
from jax_cxl._store import agreement, arguments, following, views
from jax_cxl._store.memory import catalog
from jax_cxl._store.memory.devices import Devices
from jax_cxl._store.store import Store
from jax_cxl._table import sections, sources
from jax_cxl._table.open_table import ROWS, OpenTable
from jax_cxl._table.trained import merging, region, steps

_POLL_SECONDS = 0.001


class Table(OpenTable):
    """Rows in a memory pool. Programs of any job take rows by their numbers.

    All processes and hosts read one copy. The rows are not an operand of a program, so XLA never
    copies the table, and it may be larger than the memory of any device. docs/tables.md says more.

    Attributes:
      name: the name.
      shape: the shape of all rows together: (R, ...).
      dtype: the dtype in which they are stored.
    """

    _steps: steps.Steps | None = None

    @classmethod
    def create(
        cls,
        store: Store | str,
        name: str,
        rows: Any,
        *,
        shape: tuple[int, ...] | None = None,
        dtype: Any = None,
        trained: bool = False,
        state: dict[str, Any] | None = None,
        step_rows: int = 1 << 16,
    ) -> Self:
        """Writes a new table into a store, and opens it.

        One process calls it. Rows are written a block at a time, so that the table may be larger
        than the memory of this process. Other processes see the table once it is complete.

        Args:
          store: a `jax_cxl.Store`, or its URI. The store has one path.
          name: 1 to 128 printable bytes.
          rows: the rows: an array of shape (R, ...), for example `np.load(path, mmap_mode="r")`; or
            an iterator of such arrays, which follow each other. The dtype may be any whose elements
            have whole bytes or 4 bits. An element of 4 bits takes a whole byte.
          shape: shape of all rows, which an iterator needs.
          dtype: their dtype, which an iterator needs.
          trained: whether the rows change, by `add` and `update`. Such rows have no checksums.
          state: for trained tables: arrays beside the rows, by name, such as the moments of an
            optimizer. Each has shape (R, ...), and is given as `rows` is. A `jax.ShapeDtypeStruct`
            stands for zeros.
          step_rows: for trained tables: how many different rows a step may change. The store needs
            room for as many rows in addition to the table.

        Returns:
          The open table.

        Raises:
          StoreError: the store has the name already, or has several paths.
          PoolTooSmallError: there is no room for the table.
          TypeError, ValueError: an argument is wrong. Then the store has no such table.

        Example:
          >>> table = jax_cxl.Table.create(
          ...     "shm:tables?size=64MiB", "squares", jnp.arange(10)[:, None] ** 2
          ... )
          >>> jax.jit(table.take)(jnp.array([[3, 9], [0, -1]]))[..., 0]
          Array([[ 9, 81],
                 [ 0, 81]], dtype=int32)
        """
        name = catalog.check_new_name(name)
        given = sources.of(rows, shape, dtype)
        if trained:
            beside = {key: sources.of_state(key, x, given) for key, x in (state or {}).items()}
            plan = region.Plan.of(given, beside, step_rows)
            devices = sections.devices_of(store, make=True)
            sections.write_trained(devices, name, plan, [given, *beside.values()])
        else:
            if state is not None:
                raise ValueError("only a trained table has state: pass trained=True")
            devices = sections.devices_of(store, make=True)
            sections.write_constant(devices, name, given)
        return cls.open(store if isinstance(store, Store) else devices, name)

    @classmethod
    def open(
        cls,
        store: "Store | str | Devices",
        name: str,
        *,
        timeout: float = 0,
        cache_rows: int = 0,
    ) -> Self:
        """Opens a table, in any process of any job.

        All rows are checked once by their checksums, which reads all bytes.

        Args:
          store: a `jax_cxl.Store`, or its URI.
          name: the name.
          timeout: how many seconds to wait until another process has made the table.
          cache_rows: for tables that are not trained: how many rows, at least, the cache in the
            memory of each GPU holds. `refresh_cache` fills the cache. For each row, the cache takes
            72 bytes besides the row itself. CPU devices have no cache.

        Raises:
          StoreError: there is no store, or no such table, or the table is damaged; or it is
            trained, and cache_rows is not 0.
          StoreTimeoutError: it was not complete in time.
          TypeError, ValueError: an argument is wrong.
        """
        name = catalog.check_name(name)
        cache_rows = arguments.whole("cache_rows", cache_rows)
        if cache_rows < 0:
            raise ValueError(f"cache_rows={cache_rows} must not be negative")
        seconds = following.seconds_of(timeout)
        devices = sections.devices_of(store, seconds=seconds)
        if seconds:
            following.wait(devices, name, -1, seconds)
        view = views.view(devices, name, None, None)
        if not view.section.entry.keep:
            if isinstance(view.tree.get(sections.DESCRIPTION), str):
                if cache_rows:
                    raise errors.StoreError(
                        f"{name!r} is a trained table, whose rows change: open it without"
                        " cache_rows"
                    )
                return cls(name, view, *sections.trained_columns(view))
            if view.tree.keys() == {ROWS}:
                return cls(name, view, sections.constant_columns(view, cache_rows))
        raise errors.StoreError(f"{name!r} of {devices.where!r} is not a table: use Store.read")

    def add(self, ids: Any, updates: Any) -> int:
        """Adds to rows of a trained table.

        All processes of the job call it at the same place of the program, outside of `jax.jit`. It
        waits for the arguments. Updates of one row are summed first, in the order of the processes
        and of their positions in `ids`. The sum is then added to the row. The result has the same
        bits as on one CPU device with `rows + jnp.zeros_like(rows).at[ids].add(updates)`, where
        floats of fewer than 32 bits, in rows or in updates, are converted to float32 first, and the
        result is converted to the dtype of the table. When `add` returns, all processes of all jobs
        take the new rows. A row that is taken meanwhile includes all of the step or nothing of it.

        Args:
          ids: integers of any shape. Ids from -R to -1 count from the end; other ids outside of the
            table have no effect. An array over several processes is divided along its first axis.
          updates: array of shape (*ids.shape, ...), of any dtype of numbers.

        Returns:
          The number of the step, from 1 on.

        Raises:
          StoreError: another living job trains the table, or another process could not take part.
          MismatchError: processes have updates of different dtypes.
          PeerLostError, CollectiveTimeoutError: another process did not take part. If the step was
            committed before, the next call completes it.
          TypeError, ValueError: an argument is wrong, or more than `step_rows` rows change. Then no
            row has changed.

        Example:
          >>> loss = lambda delta: jnp.sum(table.take(ids, delta=delta) ** 2)
          >>> gradients = jax.grad(loss)(jnp.zeros((*ids.shape, *table.shape[1:])))
          >>> table.add(ids, -0.1 * gradients)
        """
        return self._step(ids, updates, _add)

    def update(self, ids: Any, gradients: Any, rule: steps.Rule) -> int:
        """Changes rows of a trained table, and their state, by the rule of an optimizer.

        Works like `add`, with a rule in place of the sum. Only rows with a gradient change.

        Args:
          ids: as for `add`.
          gradients: as `updates` for `add`.
          rule: function of three arguments: rows of shape (K, ...); the sums of their gradients,
            of the same shape, in the dtype to which JAX promotes rows and gradients, and at least
            in float32 if these are floats; and a dict with K entries of each array of the state. It
            returns new rows and a new dict, of the same shapes and dtypes. JAX compiles it. K is a
            power of two: rows of zeros are added, and what the rule returns for them is dropped.

        Returns:
          The number of the step.

        Raises:
          CxlError, TypeError, ValueError: as for `add`, or the rule returns other shapes or dtypes.

        Example:
          >>> def momentum(rows, gradients, state):
          ...   m = 0.9 * state["m"] + gradients
          ...   return rows - 0.1 * m, {"m": m}
          >>> table.update(ids, gradients, momentum)
        """
        return self._step(ids, gradients, functools.partial(_compiled, jax.jit(rule)))

    @property
    def step(self) -> int:
        """The number of the last step of a trained table.

        It is 0 before the first step, and for tables that are not trained.
        """
        return self._memory.applied if self._memory else 0

    def wait(self, step: int, timeout: float | None = None) -> int:
        """Waits until a trained table has reached a step; returns the number of its last step.

        Args:
          step: the number.
          timeout: seconds, by default `JAX_CXL_TIMEOUT`.

        Raises:
          StoreTimeoutError: the step did not come in time.
        """
        seconds = following.seconds_of(timeout)
        end = time.monotonic() + seconds
        while (now := self.step) < step:
            if time.monotonic() > end:
                raise errors.StoreTimeoutError(
                    f"{self.name!r} has reached step {now}, but not step {step} within {seconds:g}"
                    " s: check the job that trains it, or wait longer (timeout=)"
                )
            time.sleep(_POLL_SECONDS)
        return now

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Waits until no program takes rows, and then gives up the table.

        Programs that take rows from it fail from then on.
        """
        self._end_steps()
        for column in self._columns.values():
            column.close()
        self._held.close()

    def _step(self, ids: Any, updates: Any, rule: steps.Rule) -> int:
        if self._memory is None:
            raise errors.StoreError(
                f"{self.name!r} cannot change: make the table with trained=True"
            )
        columns = list(self._columns.values())
        columns[0].check_open()
        if self._steps is not None and self._steps.job != agreement.job():
            self._end_steps()
        if self._steps is None:
            self._steps = steps.Steps(self._memory, columns)
        try:
            return self._steps.take(lambda: self._prepared(ids, updates), rule)
        except BaseException:
            # The next call finds out which steps have been committed.
            self._end_steps()
            raise

    def _end_steps(self) -> None:
        """Lets other jobs change the table."""
        if self._steps is not None:
            self._steps.close()
            self._steps = None

    def _prepared(self, ids: Any, updates: Any) -> tuple[np.ndarray, np.ndarray]:
        """Returns ids as a vector, and an update for each."""
        rows = self._columns[ROWS]
        ids, updates = merging.local(ids), merging.local(updates)
        if not jnp.issubdtype(ids.dtype, np.integer):
            raise TypeError(f"ids must be integers, got {ids.dtype}")
        if updates.shape != (*ids.shape, *rows.row_shape):
            raise ValueError(
                f"updates must have the shape {(*ids.shape, *rows.row_shape)}, got {updates.shape}"
            )
        if not jnp.issubdtype(updates.dtype, np.number):
            raise TypeError(f"updates must be numbers, got {updates.dtype}")
        if merging.as_jax(np.empty(0, rows.dtype)).dtype == rows.dtype:
            updates = merging.as_jax(updates)
        named = merging.named(ids.reshape(-1), rows.rows)
        return named, updates.reshape(-1, *rows.row_shape)


def _add(rows: Any, sums: Any, state: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    wide = merging.widened(rows.dtype)
    return (rows.astype(wide) + merging.converted(sums, wide)).astype(rows.dtype), state


def _compiled(rule: Any, *arguments: Any) -> Any:
    """Computes a rule. Pads the rows to a power of two, so that JAX compiles few programs."""
    count = len(arguments[0])
    more = (1 << (count - 1).bit_length()) - count
    padded = jax.tree.map(
        lambda x: np.concatenate([x, np.zeros((more, *x.shape[1:]), x.dtype)]), arguments
    )
    return jax.tree.map(lambda x: np.asarray(x)[:count], rule(*padded))
