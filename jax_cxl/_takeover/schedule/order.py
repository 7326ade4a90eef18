"""Decides when collectives of a scheduled computation start, and when the program waits for them.

Other instructions keep their order, but those that a start needs run earlier, together with the
start. The decision depends on nothing but the arguments, so it is equal on all ranks.
"""

from collections.abc import Sequence

from jax_cxl._takeover.schedule.model import MARGIN, Clock, Node, Pair
from jax_cxl._takeover.schedule.usage import Usage

# Another collective starts if the earlier ones end less than this many seconds after the end of the
# next instruction. With this reserve, a wrong estimate does not leave the pool idle.
_LEAD = 1e-3
# How many seconds longer than the collective the preparation of its operands may take.
_PREPARATION = 0.2e-3


def simulate(nodes: Sequence[Node], pairs: Sequence[Pair], order: Sequence[int]) -> Clock:
    """Executes an order in the model."""
    clock = Clock(nodes, pairs)
    for position in order:
        clock.run(position)
    return clock


def early(nodes: Sequence[Node], pairs: Sequence[Pair], limit: int) -> tuple[Clock, int] | None:
    """Returns an order that the model finds faster than XLA's, None if there is none.

    Also returns the bytes, at most `limit`, by which the memory in use may grow.
    """
    before = simulate(nodes, pairs, range(len(nodes)))
    # What runs later takes memory that is not known when a collective starts. If an order takes too
    # much memory, try again with a smaller limit, which leaves room for that.
    for part in dict.fromkeys((limit, limit * 3 // 4, limit // 2)):
        after, added = arrange(nodes, pairs, part)
        if after.seconds < before.seconds and added <= limit:
            return after, added
    return None


def arrange(nodes: Sequence[Node], pairs: Sequence[Pair], limit: int) -> tuple[Clock, int]:
    """Returns an order whose early starts add at most `limit` bytes, and all bytes that it adds."""
    arrangement = _Arrangement(nodes, pairs, limit)
    return arrangement.order(), int(arrangement.usage.added.max(initial=0))


class _Arrangement:
    """Builds an order, instruction by instruction."""

    def __init__(self, nodes: Sequence[Node], pairs: Sequence[Pair], limit: int) -> None:
        self._nodes = nodes
        movable = [pair for pair in pairs if pair.movable]
        # The starts and dones that may move.
        self._bounds = {p for pair in movable for p in (pair.start, pair.done)}
        kept = {p for pair in pairs for p in (pair.start, pair.done)} - self._bounds
        # Views that no instruction uses stay in place, so that they keep no memory in use.
        kept |= set(range(len(nodes))) - self._bounds - {b for n in nodes for b in n.before}
        # The instructions that the loop of `order` visits, one after another.
        self._fixed = [
            p for p, node in enumerate(nodes) if p in kept or not (node.view or p in self._bounds)
        ]
        self._clock = Clock(nodes, pairs)
        self.usage = Usage(nodes, limit)
        self._need = self._needs()
        # The most urgent collective comes first. Equally urgent ones stay in XLA's order.
        self._waiting = sorted(movable, key=lambda pair: (self._need[pair.done], pair.start))

    def order(self) -> Clock:
        clock = self._clock
        for position in self._fixed:
            self._end(position)
            self._start(position)
            if position == self._fixed[-1]:  # Usually the root. All others come before it.
                for other, node in enumerate(self._nodes):
                    if position not in node.before:
                        self._run(other, position)
            self._run(position, position)
        for position in range(len(self._nodes)):
            clock.run(position)
        return clock

    def _run(self, position: int, now: int) -> None:
        self._clock.run(position)
        self.usage.ended(self._clock.positions, now)

    def _end(self, now: int) -> None:
        """Runs the dones of finished collectives."""
        clock = self._clock
        for done in [d for d, over in clock.over.items() if over + MARGIN <= clock.seconds]:
            ready = all(clock.emitted[b] for b in self._nodes[done].before)
            if done in self._bounds and ready:
                self._run(done, now)

    def _start(self, now: int) -> None:
        """Starts collectives, so that the pool is busy until the next instruction has run."""
        clock = self._clock
        self._waiting = [pair for pair in self._waiting if not clock.emitted[pair.start]]
        while clock.free < clock.seconds + self._nodes[now].seconds + _LEAD:
            for pair in self._waiting:
                moves = self._moves(pair)
                if moves is not None and self.usage.take(moves, now):
                    break
            else:
                return
            self._waiting.remove(pair)
            self._run(pair.start, now)

    def _moves(self, pair: Pair) -> list[int] | None:
        """Returns the instructions to run now to start a collective, None if it cannot start."""
        moves, seconds = [pair.start], 0.0
        seen, stack = {pair.start}, [pair.start]
        while stack:
            for before in self._nodes[stack.pop()].before:
                if before in seen or self._clock.emitted[before]:
                    continue
                node = self._nodes[before]
                seconds += node.seconds
                if before in self._bounds or not (node.movable or node.view):
                    return None
                # Instructions that take longer than the collective do more than prepare it.
                if seconds > pair.seconds + _PREPARATION:
                    return None
                seen.add(before)
                moves.append(before)
                stack.append(before)
        return moves

    def _needs(self) -> list[int]:
        """Returns the position of the first instruction that needs each result.

        An instruction that can run later counts at the position where its own result is needed.
        """
        need = [len(self._nodes)] * len(self._nodes)
        for position in reversed(range(len(self._nodes))):
            node = self._nodes[position]
            lazy = position in self._bounds or node.view
            here = need[position] if lazy else position
            for before in node.before:
                need[before] = min(need[before], here)
        return need
