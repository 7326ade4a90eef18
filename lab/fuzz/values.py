"""Random values, and arithmetic on them that JAX and NumPy do alike.

Exact values are whole numbers from -3 to 3. Their sums stay so small that every order of additions
gives the same bits, in all dtypes. `fold` brings results back into that range.
"""

import math
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = tuple(
    np.dtype(name)
    for name in (
        *("bool", "int8", "uint8", "int16", "int32", "uint32", "int64"),
        *("float16", BFLOAT16, "float32", "float64", "complex64"),
    )
)
# Dtypes for programs whose results may be rounded.
REAL_DTYPES = tuple(np.dtype(name) for name in ("float32", "float64", "complex64", BFLOAT16))
# Sums in these dtypes are exact as long as they do not exceed the bound. For other dtypes the bound
# is 1 << 20 (`can_sum`).
_LARGEST = {BFLOAT16: 256, np.dtype("float16"): 2048, np.dtype("int8"): 127, np.dtype("uint8"): 255}
_TOLERANCE = {BFLOAT16: 0.1, np.dtype("float64"): 1e-11}


def random(rng: np.random.Generator, dtype: np.dtype, shape: tuple[int, ...], exact: bool):
    """Returns random values: whole numbers, or normally distributed ones."""
    if not exact:
        real = rng.standard_normal(shape)
        return (real + 1j * rng.standard_normal(shape) if dtype.kind == "c" else real).astype(dtype)
    if dtype.kind == "b":
        return rng.integers(2, size=shape).astype(bool)
    low = 0 if dtype.kind == "u" else -3
    whole = rng.integers(low, 4, size=shape)
    if dtype.kind == "c":
        return (whole + 1j * rng.integers(low, 4, size=shape)).astype(dtype)
    return whole.astype(dtype)


def can_sum(dtype: np.dtype, terms: int, factors: int = 1) -> bool:
    """Whether a sum of `terms` products of `factors` exact values each is exact in `dtype`."""
    return terms * 3**factors <= _LARGEST.get(dtype, 1 << 20)


def is_numpy(x: Any) -> bool:
    """Whether x belongs to NumPy, not to JAX."""
    return isinstance(x, np.ndarray | np.generic)


def wide(x: Any) -> Any:
    """Returns a NumPy array in the widest dtype of its kind, and a JAX array as it is."""
    kinds = {"i": np.int64, "u": np.uint64, "c": np.complex128, "b": np.bool_}
    return x.astype(kinds.get(x.dtype.kind, np.float64)) if is_numpy(x) else x


def fold(x: Any, exact: bool) -> Any:
    """Returns the values in a small range: exact ones modulo 4, others multiplied by 0.25."""
    kind, xp = x.dtype.kind, np if is_numpy(x) else jnp
    if kind == "b":
        return x
    if not exact:
        return (wide(x) * 0.25).astype(x.dtype)
    if kind == "c":
        return (xp.fmod(x.real, 4) + 1j * xp.fmod(x.imag, 4)).astype(x.dtype)
    return xp.fmod(wide(x), 4).astype(x.dtype)


def wrong(got: np.ndarray, want: np.ndarray, exact: bool) -> int:
    """Returns how many elements are wrong: all of them if the shape or the dtype is different."""
    if got.shape != want.shape or got.dtype != want.dtype:
        return max(1, want.size)
    if exact or want.dtype.kind in "biu":
        return int((got != want).sum())
    tolerance = _TOLERANCE.get(want.dtype, 1e-4)
    scale = max(1.0, float(np.abs(wide(want)).max(initial=0)))
    near = np.abs(wide(got) - wide(want)) <= tolerance * scale * math.sqrt(8)
    return int((~near).sum())
