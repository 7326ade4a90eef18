"""Rows from which a table is made: arrays and iterators of blocks, a block at a time."""

import dataclasses
import math
import operator
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import numpy as np

from jax_cxl._store.trees import leaves

_BLOCK_BYTES = 16 << 20


@dataclasses.dataclass
class Source:
    """Rows from which a table is made: arrays of rows, one after another."""

    shape: tuple[int, ...]
    dtype: np.dtype
    blocks: Iterator[np.ndarray]

    def bytes(self) -> Iterator[np.ndarray]:
        """Yields the bytes of the rows, in pieces of any size."""
        rows = 0
        for block in self.blocks:
            if block.dtype != self.dtype or block.shape[1:] != self.shape[1:] or not block.ndim:
                raise ValueError(
                    f"a block of rows has {block.dtype}{list(block.shape)}, and the table has rows"
                    f" of {self.dtype}{list(self.shape[1:])}: correct the block, or shape and dtype"
                )
            rows += block.shape[0]
            if rows > self.shape[0]:
                break
            yield np.ascontiguousarray(block).reshape(-1).view(np.uint8)
        if rows != self.shape[0]:
            raise ValueError(
                f"the blocks have {'more than ' if rows > self.shape[0] else ''}"
                f"{min(rows, self.shape[0])} rows, and the table has {self.shape[0]}:"
                " correct the blocks, or shape"
            )


def of(rows: Any, shape: Any = None, dtype: Any = None) -> Source:
    """Returns rows as `Table.create` takes them."""
    if isinstance(rows, np.ndarray | jax.Array):
        source = _of_array(rows)
    elif isinstance(rows, Iterable) and not isinstance(rows, str):
        if shape is None or dtype is None:
            raise ValueError("an iterator of blocks of rows needs shape and dtype: pass both")
        shape = tuple(map(operator.index, shape if isinstance(shape, Iterable) else (shape,)))
        source = Source(shape, np.dtype(dtype), map(_block, rows))
    else:
        raise TypeError(
            f"rows={type(rows).__name__} must be an array or an iterator of blocks. np.load(path,"
            " mmap_mode='r') gives the array of a .npy file"
        )
    _check(source, shape, dtype)
    return source


def of_state(name: str, given: Any, rows: Source) -> Source:
    """Returns the source of an array of a trained table's state: an entry for each row."""
    if not isinstance(name, str) or not name.isidentifier() or name == "rows":
        raise ValueError(f"state: the name {name!r} must be a Python identifier other than 'rows'")
    if isinstance(given, jax.ShapeDtypeStruct):
        given = np.broadcast_to(np.zeros((), given.dtype), given.shape)  # takes no memory
    source = of(given)
    if source.shape[0] != rows.shape[0]:
        raise ValueError(f"state: {name} has {source.shape[0]} rows, and the table {rows.shape[0]}")
    return source


def _check(source: Source, shape: Any, dtype: Any) -> None:
    if shape is not None and tuple(shape) != source.shape:
        raise ValueError(
            f"the rows have the shape {source.shape}, not {tuple(shape)}: correct shape, or leave"
            " it out"
        )
    if dtype is not None and np.dtype(dtype) != source.dtype:
        raise ValueError(
            f"the rows have the dtype {source.dtype}, not {np.dtype(dtype)}: convert the rows, or"
            " leave dtype out"
        )
    if not source.shape or any(n < 0 for n in source.shape):
        raise ValueError(f"a table needs rows: its shape cannot be {source.shape}")
    if not leaves.is_supported(source.dtype):
        raise TypeError(
            f"a table cannot hold {source.dtype!r}: elements must be numbers in the byte order of"
            " this machine"
        )


def _block(rows: Any) -> np.ndarray:
    check_no_mask(rows)
    return np.asarray(rows)


def check_no_mask(array: Any) -> None:
    """Refuses masked arrays: NumPy would forget which of their elements are missing."""
    if isinstance(array, np.ma.MaskedArray):
        raise TypeError("a table cannot have masks: pass array.filled(...) instead of this array")


def _of_array(array: Any) -> Source:
    check_no_mask(array)
    if isinstance(array, jax.Array):
        if jax.dtypes.issubdtype(array.dtype, jax.dtypes.extended):
            raise TypeError("a table cannot hold typed PRNG keys: pass jax.random.key_data(keys)")
        if not array.is_fully_addressable:
            raise ValueError("the rows are spread over processes: pass an array of one process")
    row_bytes = math.prod(array.shape[1:]) * array.dtype.itemsize
    step = max(1, _BLOCK_BYTES // max(1, row_bytes))
    count = array.shape[0] if array.ndim else 0
    blocks = (np.asarray(array[start : start + step]) for start in range(0, count, step))
    return Source(tuple(array.shape), np.dtype(array.dtype), blocks)
