"""Checks of arguments that are Python values: integers and booleans.

A value of another type raises TypeError. A traced value in place of an integer raises
NotImplementedError. An integer out of range raises ValueError.
"""

import operator
from typing import Any

import jax
import numpy as np


def integer(op: str, argument: str, value: Any) -> int:
    """Returns an integer as an int. True and 1.5 are not integers."""
    if isinstance(value, jax.core.Tracer):
        raise NotImplementedError(
            f"jax_cxl.{op}: {argument} must be a Python int, not a traced value: programs are"
            " compiled for it. Pass a constant."
        )
    try:
        if not isinstance(value, (bool, np.bool)):
            return operator.index(value)
    except TypeError:
        pass
    raise TypeError(f"jax_cxl.{op}: {argument}={value!r} must be an integer.")


def not_negative(op: str, argument: str, value: Any) -> int:
    """Returns an integer that must be at least 0."""
    number = integer(op, argument, value)
    if number < 0:
        raise ValueError(f"jax_cxl.{op}: {argument}={number} must not be negative.")
    return number


def positive(op: str, argument: str, value: Any) -> int:
    """Returns an integer that must be at least 1 and fit into 32 bits."""
    number = integer(op, argument, value)
    if not 1 <= number <= np.iinfo(np.int32).max:
        raise ValueError(
            f"jax_cxl.{op}: {argument}={number} must be at least 1 and less than 2**31."
        )
    return number


def tuples(op: str, argument: str, value: Any) -> tuple[tuple[int, ...], ...]:
    """Returns lists of integers, such as groups or pairs, as tuples."""
    try:
        rows = [list(row) for row in value]
    except TypeError:
        raise TypeError(
            f"jax_cxl.{op}: {argument}={value!r} must be a list of lists of integers."
        ) from None
    return tuple(tuple(integer(op, f"an index in {argument}", i) for i in row) for row in rows)


def boolean(op: str, argument: str, value: Any) -> bool:
    """Returns a value that must be True or False."""
    if not isinstance(value, (bool, np.bool)):
        raise TypeError(f"jax_cxl.{op}: {argument}={value!r} must be True or False.")
    return bool(value)


def levels(op: str, value: Any) -> bool | None:
    """Returns the argument `levels` of a collective, which must be True, False or None."""
    if value is None:
        return None
    if not isinstance(value, (bool, np.bool)):
        raise TypeError(f"jax_cxl.{op}: levels={value!r} must be True, False or None.")
    return bool(value)
