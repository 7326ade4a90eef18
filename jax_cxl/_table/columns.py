"""The columns of an open table, of which programs take rows."""

import math
from typing import Any

import jax
import numpy as np

from jax_cxl import _core, errors
from jax_cxl._job import configuration, platforms
from jax_cxl._store.memory.devices import Devices

_IDENTITY_BITS = 63


class Column:
    """Rows of a table, as a program names them.

    Columns of one table with the same number are equal, also if the table was opened twice.
    Compiled programs keep a column, and so the memory that it reads.

    Attributes:
      rows: how many rows there are.
      row_shape: shape of a row.
      dtype: dtype of the stored rows.
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
    ):
        """Makes rows known to programs of this process.

        Args:
          devices: the memory.
          name: identity of the table, and number of the column.
          address: where the rows begin in this process.
          shape: shape of all rows.
          dtype: their dtype.
          keeps: what keeps the rows as they are, and lives as long as this object.
          words: address of the words of a trained table, and how many rows have one.
        """
        self.identity, self.number = name
        self.rows, self.row_shape, self.dtype = shape[0], shape[1:], dtype
        self.row_bytes = math.prod(self.row_shape) * dtype.itemsize
        self._devices = devices
        self._keeps = keeps
        self._words, self._rows_of_part = words
        self._on_gpus: Any = None
        self.native: _core.TableColumn | None = _core.TableColumn(
            devices.core,
            table=self.identity,
            number=self.number,
            address=address,
            rows=self.rows,
            row_bytes=self.row_bytes,
            words=self._words,
            rows_of_part=self._rows_of_part,
            timeout=configuration.from_environment().timeout,
        )
        self._address = address

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Column) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, (self.rows, *self.row_shape)))}]"

    @property
    def _key(self) -> Any:
        return self.identity, self.number, self.rows, self.row_shape, self.dtype

    def check_open(self) -> None:
        """Raises StoreError if the column was closed."""
        if self.native is None:
            raise errors.StoreError("the table was closed: open it again")

    def read(self, ids: np.ndarray) -> np.ndarray:
        """Returns rows, by an int64 vector of their numbers, while nobody changes them."""
        self.check_open()
        assert self.native is not None
        out = np.empty(len(ids) * self.row_bytes, np.uint8)
        self.native.read(ids, out)
        return out.view(self.dtype).reshape(len(ids), *self.row_shape)

    def write(self, ids: np.ndarray, data: np.ndarray) -> None:
        """Overwrites rows with bytes. The caller has said which step begins."""
        self.check_open()
        assert self.native is not None
        self.native.write(ids, data)

    def close(self) -> None:
        """Waits until no program takes rows, and lets others change them."""
        self._on_gpus = self.native = None
        self._keeps = None

    def use_gpus(self) -> None:
        """Makes the rows known to programs on this process's GPUs."""
        if self._on_gpus is None:
            if self._words and self._devices.core.coherence == "flush":
                raise errors.StoreError(
                    "GPUs cannot take rows of a trained table in memory with coherence=flush: their"
                    " host would have to drop cache lines before each read"
                )
            _ = self._devices.copies  # registers the memory
            self._on_gpus = platforms.CUDA.load().TableColumn(
                table=self.identity,
                number=self.number,
                address=self._address,
                rows=self.rows,
                row_bytes=self.row_bytes,
                words=self._words,
                rows_of_part=self._rows_of_part,
                timeout=configuration.from_environment().timeout,
                devices=[platforms.CUDA.ordinal(device) for device in jax.local_devices()],
            )


def identity_of(identity: int) -> int:
    """Returns the identity of an entry of the catalog as an attribute of a call."""
    return identity & ((1 << _IDENTITY_BITS) - 1)
