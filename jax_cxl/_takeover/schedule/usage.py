"""How many bytes a computation uses at each position of an order."""

from collections.abc import Sequence

import numpy as np

from jax_cxl._takeover.schedule.model import Node, Pair

# An instruction, and a part of its result.
_Owner = tuple[int, int]


def most_by_xla(nodes: Sequence[Node], pairs: Sequence[Pair]) -> int:
    """Returns the peak number of bytes in use in XLA's order, including called computations."""
    places = used(nodes, pairs, range(len(nodes)))
    return int((places - [node.grown for node in nodes]).max(initial=0))


def used(nodes: Sequence[Node], pairs: Sequence[Pair], positions: Sequence[int]) -> np.ndarray:
    """Returns the bytes in use at each place of an order."""
    starts = {pair.done: pair.start for pair in pairs}
    # For each instruction, the memory that its result names: (instruction, part of its result).
    owners: dict[int, frozenset[_Owner]] = {}
    # The places between which the memory of a part of a result is in use.
    first: dict[_Owner, int] = {}
    last: dict[_Owner, int] = {}
    for place, position in enumerate(positions):
        node = nodes[position]
        below = frozenset().union(*(owners[b] for b in _reads(node)))
        if position in starts:
            # What the start reads stays in use until the done.
            below = below.union(*(owners[b] for b in _reads(nodes[starts[position]])))
        named = frozenset().union(*(_named(owners, name) for name in node.names))
        if node.view and not node.names:
            named = below
        own = frozenset((position, part) for part in range(len(node.parts or (node.size,))))
        first |= dict.fromkeys(own, place)
        for owner in own | (named if node.view else below | named):
            last[owner] = place
        if position in starts:
            owners[position] = owners[starts[position]]
        else:
            owners[position] = named if node.view else own | named
    change = np.zeros(len(nodes) + 1, np.int64)
    for owner, place in first.items():
        position, part = owner
        num_bytes = (nodes[position].parts or (nodes[position].size,))[part]
        change[place] += num_bytes
        change[last[owner] + 1] -= num_bytes
    inside = np.array([nodes[position].inside for position in positions], np.int64)
    return np.cumsum(change)[:-1] + inside


def _reads(node: Node) -> tuple[int, ...]:
    return node.before if node.reads is None else node.reads


def _named(owners: dict[int, frozenset[_Owner]], name: tuple[int, int | None]) -> frozenset[_Owner]:
    """Returns the memory of an instruction's result, or of a part of it."""
    position, part = name
    if part is None:
        return owners[position]
    return frozenset(o for o in owners[position] if o[0] != position or o[1] == part)


class Usage:
    """Bytes in use at each place of XLA's order, while another order is built."""

    def __init__(self, nodes: Sequence[Node], pairs: Sequence[Pair], limit: int) -> None:
        self._nodes = nodes
        self._pairs = {pair.done: pair for pair in pairs}
        self._seen = 0
        self._used = used(nodes, pairs, range(len(nodes)))
        self._allowed = most_by_xla(nodes, pairs) + limit

    def take(self, moves: Sequence[int], now: int) -> bool:
        """Adds the results of instructions that run earlier than in XLA's order.

        Returns False, and adds nothing, if there is no room.
        """
        more = np.zeros_like(self._used)
        for part in moves:
            more[now:part] += self._nodes[part].size  # adds nothing if XLA's order has it earlier
        if more.any() and (self._used + more)[more > 0].max() > self._allowed:
            return False
        self._used += more
        return True

    def ended(self, order: Sequence[int], now: int) -> None:
        """Adds the operands of collectives that ended later than in XLA's order, for the delay."""
        for position in order[self._seen :]:
            pair = self._pairs.get(position)
            if pair is not None and now > position:
                self._used[position:now] += pair.held
        self._seen = len(order)
