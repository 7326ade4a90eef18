"""Collectives between the GPUs of a process, by XLA, over the links between the GPUs."""

import functools
from typing import Any

import numpy as np
from jax import lax

from jax_cxl._lowering.contract import ReduceOp
from jax_cxl._lowering.primitives import dtypes, named_axis

# XLA's collectives between GPUs move all dtypes of NumPy, and these
# (ToNcclDataType in XLA's xla/backends/gpu/collectives).
_MOVED = (
    *("bfloat16", "float8_e5m2", "float8_e4m3fn", "float8_e5m2fnuz", "float8_e4m3fnuz"),
    "float8_e8m0fnu",
)


def moves(dtype: np.dtype) -> bool:
    """Returns whether XLA's collectives between GPUs move elements of this dtype."""
    return dtype.isbuiltin == 1 or dtype.name in _MOVED


class BetweenDevices:
    """Runs collectives inside each process by `jax.lax`, for each of the `groups` along `axes`.

    `at` has, for each process, the places of its ranks in a group of the whole collective.
    """

    def __init__(
        self,
        axes: named_axis.Axes,
        at: np.ndarray,
        groups: named_axis.Groups,
        reduce_op: ReduceOp,
    ) -> None:
        whole = groups or (tuple(range(at.size)),)
        self._over: Any = {
            "axis_name": axes,
            "axis_index_groups": [[group[i] for i in row] for group in whole for row in at],
        }
        self._reduce_op = reduce_op

    def reduce_scatter(self, x: Any) -> Any:
        """Exchanges the parts, then combines them in rank order.

        It does not use XLA's own sum, because that has no fixed order.
        """
        parts = self.all_to_all(x)
        wide = parts.astype(dtypes.accumulator(x.dtype))
        combine = {
            ReduceOp.SUM: lax.add,
            ReduceOp.MIN: lax.min,
            ReduceOp.MAX: lax.max,
            ReduceOp.AND: lax.bitwise_and,
            ReduceOp.OR: lax.bitwise_or,
        }
        return functools.reduce(combine[self._reduce_op], wide).astype(x.dtype)

    def all_gather(self, x: Any) -> Any:
        return lax.all_gather(x, **self._over)

    def all_to_all(self, x: Any) -> Any:
        return lax.all_to_all(x, split_axis=0, concat_axis=0, **self._over)

    def scatter(self, x: Any, root: int) -> Any:
        return self.all_to_all(x)[root]
