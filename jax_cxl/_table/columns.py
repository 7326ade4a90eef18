"""The columns of an open table, from which programs take rows."""

import dataclasses
import math
from typing import Any

import jax
import numpy as np

from jax_cxl import _core, errors
from jax_cxl._job import configuration, platforms
from jax_cxl._store.memory.devices import Devices

# Calls identify a table by an attribute, which is a signed 64-bit integer. So this is all they have
# of the identity in the catalog.
_IDENTITY = (1 << 63) - 1


@dataclasses.dataclass(frozen=True)
class TableStats:
    """What this process has taken from a table so far.

    Attributes:
      rows_taken: rows that programs took, including those outside of the table.
      cache_rows: how many rows the cache of each GPU may have; 0: there is no cache.
      cache_wanted: rows that were looked for in caches.
      cache_found: rows that were found there.
    """

    rows_taken: int
    cache_rows: int
    cache_wanted: int
    cache_found: int

    @property
    def cache_hit_rate(self) -> float:
        """The fraction of the rows looked for in caches that were found there.

        It is 0 if no row was looked for yet.
        """
        return self.cache_found / max(self.cache_wanted, 1)


class Column:
    """An array of a table, with an entry for each row, from which programs take rows.

    Two columns are equal if they have the same number in the same table, even if the table was
    opened twice. A compiled program keeps its columns alive, and with them the memory that they
    read.
    """

    def __init__(
        self,
        devices: Devices,
        name: tuple[int, int],
        address: int,
        shape: tuple[int, ...],
        dtype: np.dtype,
        keeps: Any,
        words: tuple[int, int] = (0, 0),
        cache_rows: int = 0,
    ):
        """Makes rows known to programs of this process.

        Args:
          name: the identity of the table in the catalog, and the number of the column.
          keeps: an object that keeps the rows as they are, and that lives as long as this column.
          words: address of the words of a trained table (`trained/region.py`), and how many rows
            share a word.
        """
        self.identity, self.number = name[0] & _IDENTITY, name[1]
        self.rows, self.row_shape, self.dtype = shape[0], shape[1:], dtype
        self.row_bytes = math.prod(self.row_shape) * dtype.itemsize
        self._devices = devices
        self._keeps = keeps
        self._cache_rows = cache_rows
        self._on_gpus: Any = None
        self._trained = words != (0, 0)
        self.native: _core.TableColumn | None = _core.TableColumn(
            devices.core,
            table=self.identity,
            number=self.number,
            address=address,
            rows=self.rows,
            row_bytes=self.row_bytes,
            words=words[0],
            rows_of_part=words[1],
            timeout=configuration.from_environment().timeout,
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Column) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, (self.rows, *self.row_shape)))}]"

    @property
    def _key(self) -> Any:
        return self.identity, self.number, self.rows, self.row_shape, self.dtype

    def check_open(self) -> _core.TableColumn:
        """Returns the column of C++. Raises StoreError if the column was closed."""
        if self.native is None:
            raise errors.StoreError("the table was closed: open it again")
        return self.native

    def read(self, ids: np.ndarray) -> np.ndarray:
        """Returns the rows with the numbers `ids`, an int64 vector, as programs take them."""
        native = self.check_open()
        out = np.empty(len(ids) * self.row_bytes, np.uint8)
        self._devices.access(0, lambda: native.read(ids, out))
        return out.view(self.dtype).reshape(len(ids), *self.row_shape)

    def write(self, ids: np.ndarray, data: np.ndarray) -> None:
        """Overwrites rows with bytes, after `Region.begin` for the parts that contain the rows."""
        native = self.check_open()
        self._devices.access(0, lambda: native.write(ids, data))

    def close(self) -> None:
        """Waits until no program takes rows. Afterwards others may overwrite the rows."""
        self._on_gpus = self.native = None
        self._keeps = None

    def use(self, platform: platforms.Platform) -> None:
        """Makes the rows known to programs on this process's devices of a platform."""
        native = self.check_open()
        if platform is platforms.CUDA and self._on_gpus is None:
            if self._trained and self._devices.core.coherence == "flush":
                raise errors.StoreError(
                    "GPUs cannot take rows of a trained table in memory with coherence=flush: their"
                    " host would have to drop cache lines before each read. Use coherent memory, or"
                    " CPU devices"
                )
            _ = self._devices.copies  # registers the memory
            self._on_gpus = platforms.CUDA.load().TableColumn(
                native,
                cache_rows=self._cache_rows,
                devices=[platforms.CUDA.ordinal(device) for device in jax.local_devices()],
            )

    def refresh_cache(self) -> None:
        """Fills the caches with the rows that were taken most often lately."""
        self.check_open()
        if self._on_gpus is not None:
            self._on_gpus.refresh_cache()

    def stats(self) -> TableStats:
        """Returns counts of the rows that were taken."""
        taken = self.check_open().taken
        wanted, found = self._on_gpus.cache_counts() if self._on_gpus is not None else (0, 0)
        return TableStats(taken, self._cache_rows, wanted, found)
