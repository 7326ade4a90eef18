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

A long collective works in chunks. While the pool moves chunks, the processes combine the chunks
that follow, then distribute the chunks that have arrived:

    inside   before 0 | before 1 | before 2 | after 0 | after 1 | after 2
    across            | chunk 0       | chunk 1       | chunk 2 |
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from jax_cxl._lowering.contract import Op
from jax_cxl._lowering.levels.split import Split


class _Steps(NamedTuple):
    """The steps of a collective: what comes before the step across, and what comes after it.

    `arrange` only moves elements within a rank. It takes the result of `after` and the shape of the
    operand, and returns the result of the collective.
    """

    before: Callable[[Any], Any] = lambda x: x
    root: int = 0
    after: Callable[[Any], Any] = lambda y: y
    arrange: Callable[[Any, tuple[int, ...]], Any] = lambda y, shape: y


class Levels(NamedTuple):
    """Runs collectives in levels, for ranks that `split` spreads over processes.

    Attributes:
      inside: has `reduce_scatter`, `all_gather`, `all_to_all` and `scatter` between the ranks of a
        process. The first dimension of their arrays counts these ranks.
      across: has `run` and `start`, which run or start a collective across. The first dimension of
        blocks counts the processes. `start` returns an object like a future, with a `token`, an
        array that the start computes.
    """

    split: Split
    inside: Any
    across: Any

    def run(self, op: Op, x: Any, root: int, chunks: int) -> Any:
        """Runs a collective. If its operand or result has blocks, dimension 0 counts them."""
        steps = self._steps(op, root)
        if self.split.processes == 1:
            y = _of_one_process(op, steps.before(x))
            return steps.arrange(steps.after(y), x.shape)
        if chunks == 1:
            y = self.across.run(op, steps.before(x), steps.root)
            return steps.arrange(steps.after(y), x.shape)
        whole = x.reshape(x.shape[0], -1) if op.operand_blocks else x.reshape(-1)
        width = -(-whole.shape[-1] // chunks)
        pieces = [whole[..., at : at + width] for at in range(0, whole.shape[-1], width)]
        y = jnp.concatenate(self._overlapped(op, steps, pieces), -1)
        block = x.shape[1:] if op.operand_blocks else x.shape
        return y.reshape(*y.shape[:-1], *block)

    def _overlapped(self, op: Op, steps: _Steps, pieces: list[Any]) -> list[Any]:
        """Runs the collective for each piece. Steps across overlap the steps of other pieces."""
        started: list[Any] = []
        for piece in pieces:
            # Without the tie, XLA may run the `before` steps of all pieces ahead of the first
            # start.
            x = started[-1].tie(piece) if started else piece
            started.append(self.across.start(op, steps.before(x), steps.root))
        results: list[Any] = []
        for step in started:
            # Each wait (`done`) comes after all starts, and after the steps of the previous piece.
            y = step.done(after=(started[-1].token, results[-1:]))
            results.append(steps.after(y))
        # `arrange` only moves elements, and no wait depends on it. So XLA makes these moves while
        # it joins the pieces.
        shapes = [piece.shape for piece in pieces]
        return [steps.arrange(y, shape) for y, shape in zip(results, shapes, strict=True)]

    def _steps(self, op: Op, root: int) -> _Steps:
        inside = self.inside
        if op is Op.ALL_REDUCE:
            return self._in_parts(inside.reduce_scatter, 0)
        if op is Op.BROADCAST:
            process, place = (int(i) for (i,) in np.nonzero(self.split.at == root))
            return self._in_parts(lambda v: inside.scatter(v, place), process)
        if op is Op.REDUCE_SCATTER:
            return _Steps(before=lambda x: inside.reduce_scatter(self._by_place(x)))
        if op is Op.ALL_GATHER:
            return _Steps(after=inside.all_gather, arrange=lambda y, shape: self._by_rank(y))
        if op is Op.ALL_TO_ALL:
            # Before the step across, the first dimensions of the blocks are (process of the target,
            # place of the source). After it, they are (process, place) of the source.
            return _Steps(
                before=lambda x: inside.all_to_all(self._by_place(x)).swapaxes(0, 1),
                arrange=lambda y, shape: self._by_rank(y.swapaxes(0, 1)),
            )
        raise NotImplementedError(f"{op} has no levels")

    def _in_parts(self, take_part: Callable[[Any], Any], root: int) -> _Steps:
        """Returns steps that cross in parts, of which `take_part` leaves one on each rank."""
        places = self.split.per_process

        def before(x):
            part = -(-x.size // places)
            flat = jnp.pad(x.reshape(-1), (0, places * part - x.size))
            return take_part(flat.reshape(places, part))

        def arrange(y, shape):
            return y.reshape(-1)[: math.prod(shape)].reshape(shape)

        return _Steps(before, root, self.inside.all_gather, arrange)

    def _by_place(self, x: Any) -> Any:
        """Turns blocks in the order of ranks into an array of shape (places, processes, ...)."""
        order = self.split.at.T
        return _reordered(x, order.reshape(-1)).reshape(*order.shape, *x.shape[1:])

    def _by_rank(self, x: Any) -> Any:
        """The inverse of `_by_place`."""
        order = np.argsort(self.split.at.T.reshape(-1))
        return _reordered(x.reshape(math.prod(x.shape[:2]), *x.shape[2:]), order)


def _of_one_process(op: Op, x: Any) -> Any:
    """Returns the result of a step across if there is only one process: only the shape changes."""
    if op is Op.ALL_GATHER:
        return x[None]
    return x[0] if op is Op.REDUCE_SCATTER else x


def _reordered(x: Any, order: np.ndarray) -> Any:
    n = len(order)
    # If the order is a transposition, write it as one: XLA copies that faster than single rows.
    for rows in (r for r in range(1, n) if n % r == 0):
        if (np.arange(n).reshape(rows, -1).T.reshape(-1) == order).all():
            return x.reshape(rows, n // rows, *x.shape[1:]).swapaxes(0, 1).reshape(x.shape)
    return jnp.concatenate([x[i : i + 1] for i in order])
