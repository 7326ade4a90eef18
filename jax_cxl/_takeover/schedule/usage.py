"""How many bytes an order of a computation uses in addition to XLA's order."""

from collections.abc import Sequence

import numpy as np

from jax_cxl._takeover.schedule.model import Node


class Usage:
    """The bytes that an order adds at each place of XLA's order, while the order is built.

    It counts no memory that becomes free earlier than in XLA's order, so the program's memory grows
    by no more than `added`.
    """

    def __init__(self, nodes: Sequence[Node], limit: int) -> None:
        self._nodes, self._limit = nodes, limit
        self._seen = 0
        # Result -> the place until which it is in use.
        self._until = {read: i for i, node in enumerate(nodes) for read in node.reads}
        self.added = np.array([node.grown for node in nodes], np.int64)

    def take(self, moves: Sequence[int], now: int) -> bool:
        """Adds the results of instructions that run earlier than in XLA's order.

        Returns False, and adds nothing, if there is no room.
        """
        earlier = [
            (part, size) for part in moves if part > now and (size := self._nodes[part].size)
        ]
        if not earlier:
            return True
        if self.added[now] + sum(size for _, size in earlier) > self._limit:
            return False
        more = np.zeros(max(earlier)[0] - now, np.int64)
        for part, size in earlier:
            more[: part - now] += size
        added = self.added[now : now + len(more)]
        if (added + more).max() > self._limit:
            return False
        added += more
        return True

    def ended(self, order: Sequence[int], now: int) -> None:
        """Adds the results that are read later than in XLA's order, for the delay."""
        for position in order[self._seen :]:
            for read in self._nodes[position].reads:
                self.added[self._until[read] : now] += self._nodes[read].size
                self._until[read] = max(self._until[read], now)
        self._seen = len(order)
