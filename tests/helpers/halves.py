"""The operations that can be started, and arguments with which tests call them."""

import functools
from collections.abc import Callable

import numpy as np

import jax_cxl
from jax_cxl.ops import public as ops

ARGUMENTS = {
    "all_gather": {"axis": 1, "tiled": True},
    "all_to_all": {"split_axis": 0, "concat_axis": 1, "tiled": True},
    "broadcast": {"root": 2},
    "gather": {"root": 1},
    "pand": {},
    "pbroadcast": {"source": 1},
    "pexscan": {},
    "pmax": {},
    "pmean": {},
    "pmin": {},
    "por": {},
    "ppermute": {"perm": [(0, 1), (2, 0)]},
    "pscan": {"reverse": True},
    "pshuffle": {"perm": [2, 0, 3, 1]},
    "psum": {},
    "psum_scatter": {"tiled": True},
    "pswapaxes": {"axis": 0},
    "reduce": {"root": 3},
    "scatter": {"root": 2, "tiled": True},
}
# The operations that have a derivative.
LINEAR = tuple(name for name in ARGUMENTS if name not in ("pand", "pmax", "pmin", "por"))


def dtype_for(name: str) -> type[np.generic]:
    """Returns a dtype that an operation takes: `and` and `or` take no floats."""
    return np.int32 if name in ("pand", "por") else np.float32


def halves(name: str) -> tuple[Callable, Callable]:
    """Returns the functions that start an operation, and that wait for its future."""
    return functools.partial(ops.start, getattr(ops, name)), jax_cxl.Future.done
