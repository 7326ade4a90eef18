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


def split(x: Any, dim: int, n: int) -> Any:
    """Reshapes dimension `dim` to (n, size / n)."""
    shape = np.shape(x)
    return lax.reshape(x, (*shape[:dim], n, shape[dim] // n, *shape[dim + 1 :]))


def merge(x: Any, dim: int) -> Any:
    """Reshapes dimensions `dim` and `dim + 1` to one."""
    shape = np.shape(x)
    return lax.reshape(x, (*shape[:dim], shape[dim] * shape[dim + 1], *shape[dim + 2 :]))
