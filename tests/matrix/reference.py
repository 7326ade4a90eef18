"""Values for every dtype, and their reductions: in rank order, with one rounding."""

import math
import os

import jax.numpy as jnp
import ml_dtypes
import numpy as np

from jax_cxl._lowering.contract import DTYPES
from jax_cxl._lowering.primitives import dtypes

# The number of ranks, four by default. If GPUs are the ranks, MATRIX_RANKS has their number.
RANKS = int(os.environ.get("MATRIX_RANKS", "4"))
DTYPES = (*DTYPES, *dtypes.PACKED_DTYPES)


def dtype_of(name: str) -> np.dtype:
    """Returns a dtype by JAX's name."""
    return np.dtype(getattr(ml_dtypes, name, None) or name)


def differentiable(name: str) -> bool:
    """Whether JAX differentiates with respect to arrays of this dtype."""
    return bool(jnp.issubdtype(dtype_of(name), jnp.inexact))


def values(name: str, shape: tuple[int, ...], seed: int, *, exact: bool = False) -> np.ndarray:
    """Returns values for all ranks.

    Args:
      name: dtype.
      shape: shape of one rank's value.
      seed: seed of the values.
      exact: whether sums of the values are the same in any order of additions, with any rounding.
    """
    dtype = dtype_of(name)
    rng = np.random.default_rng([seed, DTYPES.index(name), *shape])
    shape = (RANKS, *shape)
    if name == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if name == "float8_e8m0fnu":  # Powers of two, without a zero.
        return (2.0 ** rng.integers(0 if exact else -3, 1 if exact else 4, shape)).astype(dtype)
    if exact or jnp.issubdtype(dtype, jnp.integer):
        wide = rng.integers(0, 2 if exact else 100, shape)
        return _wrap(wide, dtype) if name in dtypes.PACKED_DTYPES else wide.astype(dtype)
    reach = 1 if dtype.itemsize == 1 else 3
    x = rng.uniform(-3, 3, shape) * 10.0 ** rng.integers(-reach, 1, shape)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        x = x + 1j * rng.uniform(-3, 3, shape)
    x = x.astype(dtype)
    return np.where(x == 0, np.zeros_like(x), x)  # No -0.


def _wrap(wide: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Converts to `dtype`. Integers that do not fit wrap around."""
    if dtype.name not in dtypes.PACKED_DTYPES or not jnp.issubdtype(dtype, jnp.integer):
        return wide.astype(dtype)
    info = ml_dtypes.iinfo(dtype)
    span = int(info.max) - int(info.min) + 1
    return ((wide - int(info.min)) % span + int(info.min)).astype(np.int8).astype(dtype)


def _times(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if not np.iscomplexobj(a):
        return a * b
    # NumPy's complex product fuses multiplications and additions on some processors. The code below
    # does not.
    out = np.empty_like(a)
    out.real = a.real * b.real - a.imag * b.imag
    out.imag = a.real * b.imag + a.imag * b.real
    return out


_FUNCTIONS = {
    "sum": np.add,
    "prod": _times,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
}


def fold(x: np.ndarray, op: str = "sum") -> np.ndarray:
    """Reduces the first dimension from left to right; a sum of bools is their count, an int32."""
    dtype = x.dtype
    if dtype.name == "bool" and op == "sum":
        dtype = np.dtype(np.int32)
    packed = dtype.name in dtypes.PACKED_DTYPES
    if packed and jnp.issubdtype(dtype, jnp.integer):
        wide = np.dtype(np.int64)
    elif jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize < 4:
        wide = np.dtype(np.float32)
    else:
        wide = dtype
    total = x[0].astype(wide)
    for part in x[1:]:
        total = _FUNCTIONS[op](total, part.astype(wide))
    return _wrap(total, dtype) if packed else total.astype(dtype)


def neutral(dtype: np.dtype, op: str) -> np.ndarray:
    """Returns the result of an empty reduction."""
    if op in ("sum", "prod"):
        return np.asarray(op == "prod").astype(dtype)
    if op in ("and", "or"):
        ones = np.ones((), bool) if dtype.name == "bool" else np.asarray(-1, np.int8)
        return _wrap(ones, dtype) if op == "and" else np.zeros((), dtype)
    sign = 1 if op == "min" else -1
    if dtype.name == "bool":
        return np.asarray(sign > 0)
    if jnp.issubdtype(dtype, jnp.integer):
        info = jnp.iinfo(dtype)
        return np.asarray(int(info.max if sign > 0 else info.min)).astype(dtype)
    infinity = np.asarray(sign * math.inf).astype(dtype)
    if np.isinf(infinity.astype(np.float64)):
        return infinity
    info = ml_dtypes.finfo(dtype)
    return np.asarray(info.max if sign > 0 else info.min).astype(dtype)


def count_wrong(actual: np.ndarray, expected: np.ndarray) -> int:
    """Returns how many elements differ in any bit: all of them if dtype or shape differ."""
    if actual.dtype != expected.dtype or actual.shape != expected.shape:
        return max(actual.size, 1)
    if actual.dtype.name in dtypes.PACKED_DTYPES:
        # The unused bits of an element's byte mean nothing, so this compares the values.
        return int((actual.astype(np.float32) != expected.astype(np.float32)).sum())
    shape = (actual.size, actual.dtype.itemsize)
    a, b = (np.ascontiguousarray(v).view(np.uint8).reshape(shape) for v in (actual, expected))
    if actual.dtype.name == "float8_e8m0fnu":
        # This dtype has no zero. In place of a zero, NumPy and XLA have the least value (bits 0) or
        # NaN (255), so these two count as equal.
        a, b = (np.where(v == 255, 0, v) for v in (a, b))
    return int((a != b).any(axis=1).sum())


def difference(actual: np.ndarray, expected: np.ndarray) -> str:
    """Returns how two arrays differ in dtype, shape or any bit; "" if they do not."""
    wrong = count_wrong(actual, expected)
    if not wrong:
        return ""
    return (
        f"{wrong} elements: {actual.dtype}{list(actual.shape)} {actual.ravel()[:6]} for"
        f" {expected.dtype}{list(expected.shape)} {expected.ravel()[:6]}"
    )
