"""Collectives in levels in NumPy: the documented order of additions, inside the processes first.

The functions take the values of the ranks of a group, stacked along a first dimension, and return
their results in the same way.
"""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from matrix import reference

Array = np.ndarray


class Model:
    """The collectives of one group.

    Args:
      processes: the process of each rank of the group.
      in_levels: whether the values of each process are combined first; otherwise the values of all
        ranks are combined in rank order.
    """

    def __init__(self, processes: Sequence[int], in_levels: bool) -> None:
        self._processes = np.asarray(processes) if in_levels else np.zeros(len(processes), int)

    def fold(self, x: Array, op: str = "sum") -> Array:
        _, first = np.unique(self._processes, return_index=True)
        inside = [
            reference.fold(x[self._processes == self._processes[i]], op) for i in sorted(first)
        ]
        return reference.fold(np.stack(inside), op)

    def psum(self, x: Array) -> Array:
        return np.stack([self.fold(x)] * len(x))

    def pmean(self, x: Array) -> Array:
        return np.stack([np.asarray(jnp.asarray(self.fold(x)) / len(x))] * len(x))

    def pmax(self, x: Array) -> Array:
        return np.stack([self.fold(x, "max")] * len(x))

    def pmin(self, x: Array) -> Array:
        return np.stack([self.fold(x, "min")] * len(x))

    def pand(self, x: Array) -> Array:
        return np.stack([self.fold(x, "and")] * len(x))

    def por(self, x: Array) -> Array:
        return np.stack([self.fold(x, "or")] * len(x))

    def psum_scatter(self, x: Array) -> Array:
        """Models a tiled psum_scatter along dimension 0."""
        return np.stack(np.split(self.fold(x), len(x)))

    def all_gather(self, x: Array) -> Array:
        """Models a tiled all_gather along dimension 0."""
        return np.stack([np.concatenate(x)] * len(x))

    def all_to_all(self, x: Array) -> Array:
        """Models a tiled all_to_all that divides and concatenates dimension 0."""
        return x.reshape(len(x), len(x), -1, *x.shape[2:]).swapaxes(0, 1).reshape(x.shape)

    def broadcast(self, x: Array) -> Array:
        """Models a broadcast from the second-to-last rank."""
        return np.stack([x[-2]] * len(x))

    def reduce(self, x: Array) -> Array:
        """Models a reduce to the second-to-last rank, in rank order: it has no levels."""
        y = np.zeros_like(x)
        y[-2] = reference.fold(x)
        return y
