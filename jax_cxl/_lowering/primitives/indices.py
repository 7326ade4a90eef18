"""Converts arrays of indices, offsets and sizes, for all operations.

The integer dtype of a user's array may be narrower than the numbers that an operation compares it
with, or wider than the int32 that an operation computes with. These functions are the only
conversions of such arrays. None of them wraps a value around.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

# Row numbers are int32, in XLA as in the kernels.
_MOST_ROWS = np.iinfo(np.int32).max


def integers(op: str, argument: str, x: Any) -> Any:
    """Returns an array of integers.

    Values that are not JAX arrays become NumPy arrays: without JAX_ENABLE_X64, `jnp.asarray` would
    wrap 64-bit integers around.
    """
    if not isinstance(x, jax.Array):
        traced = any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(x))
        x = jnp.asarray(x) if traced else np.asarray(x)
    if not jnp.issubdtype(x.dtype, np.integer):
        raise TypeError(f"jax_cxl.{op}: {argument} must be integers, got {x.dtype}.")
    return x


def below(x: Any, bound: int) -> Any:
    """Returns integers as int32: numbers from 0 to bound - 1 as they are, and -1 for all others."""
    wide = x if x.dtype.itemsize >= 4 else x.astype(np.int32)
    inside = wide < wide.dtype.type(bound)
    if jnp.issubdtype(wide.dtype, np.signedinteger):
        inside &= wide >= 0
    return jnp.where(inside, wide.astype(np.int32), np.int32(-1))


def signed(x: Any) -> Any:
    """Returns integers as int32, or as int64 if that may be needed and JAX has it.

    Numbers that do not fit become the nearest number that fits. This number is out of range for
    every array (`check_rows`), as the original number is.
    """
    needed = np.int64 if x.dtype.itemsize == 8 or x.dtype == np.uint32 else np.int32
    to = jax.dtypes.canonicalize_dtype(needed)
    if x.dtype.itemsize < 4:
        return jnp.asarray(x.astype(to))
    have, fits = np.iinfo(x.dtype), np.iinfo(to)
    least, most = max(have.min, fits.min), min(have.max, fits.max)
    clip = jnp.clip if isinstance(x, jax.Array) else np.clip
    return jnp.asarray(clip(x, x.dtype.type(least), x.dtype.type(most)).astype(to))


def check_rows(op: str, what: str, rows: int) -> None:
    """Checks that rows can be counted with int32."""
    if rows > _MOST_ROWS:
        raise ValueError(
            f"jax_cxl.{op}: {rows} rows of {what} are too many: at most 2**31 - 1 are supported."
            " Use several calls."
        )
