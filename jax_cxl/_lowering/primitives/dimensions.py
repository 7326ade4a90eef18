"""Functions that check, split and merge dimensions of arrays."""

from typing import Any

import numpy as np
from jax import lax

from jax_cxl._lowering.primitives import arguments


def check(op: str, argument: str, value: int, ndim: int) -> int:
    """Checks a dimension, which may be negative, and returns it in [0, ndim)."""
    value = arguments.integer(op, argument, value)
    if not -ndim <= value < ndim:
        raise ValueError(
            f"jax_cxl.{op}: {argument}={value} is out of bounds for an array with {ndim}"
            " dimensions. Name one of its dimensions."
        )
    return value % ndim


def check_divided(op: str, argument: str, value: int, x: Any, size: int, *, tiled: bool) -> int:
    """Checks a dimension of x that is divided among `size` ranks, and returns it as `check` does.

    Without `tiled` each rank gets one element, so the dimension must have `size` elements.
    """
    dim = check(op, argument, value, np.ndim(x))
    length = np.shape(x)[dim]
    if tiled and length % size:
        raise ValueError(
            f"jax_cxl.{op}: the size {length} of {argument}={dim} must be divisible by the size"
            f" {size} of the group when tiled=True."
        )
    if not tiled and length != size:
        raise ValueError(
            f"jax_cxl.{op}: the size {length} of {argument}={dim} must be equal to the size {size}"
            " of the group. Pass tiled=True to divide it."
        )
    return dim


def split(x: Any, dim: int, n: int) -> Any:
    """Reshapes dimension `dim` to (n, size / n)."""
    shape = np.shape(x)
    return lax.reshape(x, (*shape[:dim], n, shape[dim] // n, *shape[dim + 1 :]))


def merge(x: Any, dim: int) -> Any:
    """Reshapes dimensions `dim` and `dim + 1` to one."""
    shape = np.shape(x)
    return lax.reshape(x, (*shape[:dim], shape[dim] * shape[dim + 1], *shape[dim + 2 :]))
