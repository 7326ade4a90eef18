"""How many bytes a computation uses at each place of an order."""

from collections.abc import Sequence

import numpy as np

from jax_cxl._schedule.model import Node, Pair


def used(nodes: Sequence[Node], pairs: Sequence[Pair], positions: Sequence[int]) -> np.ndarray:
    """Returns the bytes in use at each place of an order."""
    starts = {pair.done: pair.start for pair in pairs}
    # For each instruction, the instructions whose memory its result names.
    owners: dict[int, frozenset[int]] = {}
    # The places at which the memory of a result begins and ends to be in use.
    first, last = {}, {}
    for place, position in enumerate(positions):
        node = nodes[position]
        first[position] = last[position] = place
        below = frozenset().union(*(owners[b] for b in node.before))
        if position in starts:
            # The done reads what the start reads.
            start = starts[position]
            below = below.union(*(owners[b] for b in nodes[start].before))
        named = frozenset().union(*(owners[n] for n in node.names)) if node.names else below
        for owner in named if node.view else below:
            last[owner] = place
        if position in starts:
            owners[position] = owners[starts[position]]
        else:
            own = frozenset((position,))
            owners[position] = named if node.view else own
    change = np.zeros(len(nodes) + 1, np.int64)
    for position, place in first.items():
        change[place] += nodes[position].size
        change[last[position] + 1] -= nodes[position].size
    return np.cumsum(change)[:-1]


class Usage:
    """Bytes in use at each place of XLA's order, while another order grows."""

    def __init__(self, nodes: Sequence[Node], pairs: Sequence[Pair], limit: int) -> None:
        self._nodes = nodes
        self._pairs = {pair.done: pair for pair in pairs}
        self._seen = 0
        self._used = used(nodes, pairs, range(len(nodes)))
        self._allowed = int(self._used.max(initial=0)) + limit

    def take(self, moves: Sequence[int], now: int) -> bool:
        """Adds the results of instructions that run earlier than in XLA's order, if they fit.

        Args:
          moves: the instructions.
          now: the place at which they run.

        Returns:
          Whether they fit.
        """
        more = np.zeros_like(self._used)
        for part in moves:
            more[now:part] += self._nodes[part].size  # adds nothing if XLA's order has it earlier
        if more.any() and (self._used + more)[more > 0].max() > self._allowed:
            return False
        self._used += more
        return True

    def ended(self, order: Sequence[int], now: int) -> None:
        """Adds the operands of collectives that ended later than in XLA's order.

        Args:
          order: the instructions that have run.
          now: the place at which the last of them ran.
        """
        for position in order[self._seen :]:
            pair = self._pairs.get(position)
            if pair is not None and now > position:
                self._used[position:now] += pair.held
        self._seen = len(order)
