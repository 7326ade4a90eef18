"""Tables in a store, from which programs take rows."""

from typing import Any, Self

from jax_cxl import errors
from jax_cxl._store import arguments, following
from jax_cxl._store.memory import catalog
from jax_cxl._store.memory.devices import Devices
from jax_cxl._store.store import Store
from jax_cxl._table import creating, opening, scaling, sources
from jax_cxl._table.open_table import ROWS, SCALES
from jax_cxl._table.taking import Taking
from jax_cxl._table.trained import region
from jax_cxl._table.training import Training


class Table(Taking, Training):
    """Rows in a memory pool. Programs of any job take rows by their numbers.

    All processes and hosts read one copy. The rows are not an operand of a program, so XLA never
    copies the table, and it may be larger than the memory of any device. docs/tables.md says more.

    Attributes:
      name: the name.
      shape: the shape of all rows together: (R, ...).
      dtype: the dtype in which they are stored.
    """

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
        trained: bool = False,
        state: dict[str, Any] | None = None,
        step_rows: int = 1 << 16,
    ) -> Self:
        """Writes a new table into a store, and opens it.

        One process calls it. Rows from an iterator or a file are written a block at a time, so that
        the table may be larger than the memory of this process. Other processes see the table once
        it is complete.

        Args:
          store: a `jax_cxl.Store`, or its URI. The store has one path.
          name: 1 to 128 printable bytes.
          rows: the rows: an array of shape (R, ...); an iterator of such arrays, which follow each
            other; or the path of a .npy or .safetensors file. The dtype may be any whose elements
            have whole bytes or 4 bits. An element of 4 bits takes a whole byte.
          shape: shape of all rows, which an iterator needs.
          dtype: their dtype. An iterator needs it, and so does a .npy file of a dtype that NumPy
            lacks.
          tensor: name of the tensor in a .safetensors file that has several.
          scales: array of shape (R,) or (R, ..., G), by which the rows are multiplied when they are
            taken. The last dimension of rows is divided into G equal blocks, each of which has a
            scale. For example rows in float8_e4m3fn with scales in float32.
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
        name = catalog.check_new_name(name)
        given = sources.of(rows, shape, dtype, tensor)
        if trained:
            if scales is not None:
                raise ValueError("a trained table cannot have scales: leave them out")
            beside = {key: sources.of_state(key, x, given) for key, x in (state or {}).items()}
            plan = region.Plan.of(given, beside, step_rows)
            devices = opening.devices_of(store, make=True)
            creating.write_trained(devices, name, plan, [given, *beside.values()])
        else:
            if state is not None:
                raise ValueError("only a trained table has state: pass trained=True")
            columns = {ROWS: given}
            if scales is not None:
                columns[SCALES] = sources.of(scales)
                scaling.check(given, columns[SCALES])
            devices = opening.devices_of(store, make=True)
            creating.write_arrays(devices, name, columns)
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
            memory of each device holds. `refresh_cache` fills the cache. For each row, the cache
            takes 72 bytes besides the row itself.

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
        devices = opening.devices_of(store, seconds=seconds)
        if seconds:
            following.wait(devices, name, -1, seconds)
        section, view = opening.view(devices, name)
        if not section.entry.keep:
            if isinstance(view.tree.get(creating.DESCRIPTION), str):
                if cache_rows:
                    raise errors.StoreError(
                        f"{name!r} is a trained table, whose rows change: open it without"
                        " cache_rows"
                    )
                return cls(name, *opening.trained_columns(section, view))
            if ROWS in view.tree:
                return cls(name, opening.constant_columns(section, view, cache_rows), view)
        raise errors.StoreError(f"{name!r} of {devices.where!r} is not a table: use Store.read")

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
