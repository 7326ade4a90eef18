"""Collectives in levels, composed of collectives inside the processes and between them.

With H processes and G ranks in each, a collective takes these steps. A step "inside" a process
moves nothing through the pool. A step "across" runs between the ranks that have the same place in
their processes.

    all-reduce       inside: reduce-scatter   across: all-reduce of a G-th   inside: all-gather
    reduce-scatter   inside: reduce-scatter   across: reduce-scatter
    all-gather                                across: all-gather             inside: all-gather
    all-to-all       inside: all-to-all       across: all-to-all
    broadcast        inside: scatter          across: broadcast of a G-th    inside: all-gather

So each process sends a byte through the pool once, and not once for each of its ranks.
"""

import dataclasses
import math
from typing import Any

import jax.numpy as jnp
import numpy as np

from jax_cxl._levels.split import Split
from jax_cxl._primitives.native_enums import Op


@dataclasses.dataclass(frozen=True)
class Levels:
    """Runs collectives in levels.

    Attributes:
      split: how the ranks lie in processes.
      inside: has `reduce_scatter`, `all_gather`, `all_to_all` and `scatter` between the ranks of a
        process, of arrays whose first dimension counts these ranks.
      across: function of (op, x, root) that runs a collective across. The first dimension of its
        operand or result counts the processes, where the collective has blocks.
    """

    split: Split
    inside: Any
    across: Any

    def run(self, op: Op, x: Any, root: int) -> Any:
        """Runs a collective. The first dimension counts blocks, where the collective has blocks."""
        if op is Op.ALL_REDUCE:
            return self._in_parts(x, self.inside.reduce_scatter, op, 0)
        if op is Op.BROADCAST:
            process, place = (int(i) for (i,) in np.nonzero(self.split.at == root))
            return self._in_parts(x, lambda v: self.inside.scatter(v, place), op, process)
        if op is Op.REDUCE_SCATTER:
            return self._across(op, self.inside.reduce_scatter(self._by_place(x)))
        if op is Op.ALL_GATHER:
            return self._by_rank(self.inside.all_gather(self._across(op, x)))
        if op is Op.ALL_TO_ALL:
            # (place of the source, process of the target) -> (process, place) of the source
            x = self.inside.all_to_all(self._by_place(x)).swapaxes(0, 1)
            return self._by_rank(self._across(op, x).swapaxes(0, 1))
        raise NotImplementedError(f"{op} has no levels")

    def _in_parts(self, x: Any, take_part: Any, op: Op, root: int) -> Any:
        """Gives each rank of a process a part of x, and gathers the parts after the collective."""
        places = self.split.per_process
        part = -(-x.size // places)
        flat = jnp.pad(x.reshape(-1), (0, places * part - x.size))
        whole = self.inside.all_gather(
            self._across(op, take_part(flat.reshape(places, part)), root)
        )
        return whole.reshape(-1)[: x.size].reshape(x.shape)

    def _across(self, op: Op, x: Any, root: int = 0) -> Any:
        """Runs a collective across. With one process only the shape changes."""
        if self.split.processes == 1:
            if op is Op.ALL_GATHER:
                return x[None]
            return x[0] if op is Op.REDUCE_SCATTER else x
        return self.across(op, x, root)

    def _by_place(self, x: Any) -> Any:
        """Turns blocks in the order of ranks into an array of shape (places, processes, ...)."""
        order = self.split.at.T
        return _reordered(x, order.reshape(-1)).reshape(*order.shape, *x.shape[1:])

    def _by_rank(self, x: Any) -> Any:
        """The inverse of `_by_place`."""
        order = np.argsort(self.split.at.T.reshape(-1))
        return _reordered(x.reshape(math.prod(x.shape[:2]), *x.shape[2:]), order)


def _reordered(x: Any, order: np.ndarray) -> Any:
    """Returns the rows of x in another order."""
    n = len(order)
    # If the order is a transposition, write it as one: XLA copies that faster than single rows.
    for rows in (r for r in range(1, n) if n % r == 0):
        if (np.arange(n).reshape(rows, -1).T.reshape(-1) == order).all():
            return x.reshape(rows, n // rows, *x.shape[1:]).swapaxes(0, 1).reshape(x.shape)
    return jnp.concatenate([x[i : i + 1] for i in order])
