"""Decides which collectives of a scheduled computation start earlier than in XLA's order.

All other instructions keep their order, the waits for collectives too. Only those that a start
needs run earlier, together with the start. The decision depends on nothing but the arguments, so it
is equal on all ranks.
"""

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np

# Another collective starts if the earlier ones end less than this many seconds after the end of the
# next instruction. With this reserve, a wrong estimate does not leave the pool idle.
_LEAD = 1e-3
# How many seconds longer than the collective the preparation of its operands may take.
_PREPARATION = 0.2e-3


@dataclasses.dataclass(frozen=True)
class Node:
    """An instruction. Instructions are named by their positions in XLA's order.

    Attributes:
      before: the instructions that must come first.
      size: bytes of its result, 0 if they belong to another instruction's result.
      movable: whether it may run earlier.
      done: for the start of a collective, the instruction that waits for the collective.
      busy: for the start of a collective, the seconds that the collective takes.
      grown: by how many bytes the computations that it calls exceed what they use in XLA's order.
    """

    before: tuple[int, ...] = ()
    seconds: float = 0.0
    size: int = 0
    movable: bool = False
    done: int | None = None
    busy: float = 0.0
    grown: int = 0


class Run:
    """The model of time: instructions run one after another, and collectives beside them.

    Collectives too run one after another, in the order of their starts.

    Attributes:
      positions: the instructions that have run, in their order.
      ran: the same as a set.
      seconds: how long they took.
      free: when the pool becomes free.
    """

    def __init__(self, nodes: Sequence[Node], order: Iterable[int] = ()) -> None:
        self._nodes = nodes
        # The ends of the collectives, by their dones.
        self._over: dict[int, float] = {}
        self.ran: set[int] = set()
        self.positions: list[int] = []
        self.seconds = self.free = 0.0
        for position in order:
            self.execute(position)

    def execute(self, position: int) -> None:
        node = self._nodes[position]
        self.ran.add(position)
        self.positions.append(position)
        if node.done is not None:
            self.free = max(self.free, self.seconds) + node.busy
            self._over[node.done] = self.free
        self.seconds = max(self.seconds, self._over.get(position, 0.0)) + node.seconds


def early(nodes: Sequence[Node], limit: int) -> tuple[Run, int]:
    """Returns an order whose early starts add at most `limit` bytes, and the bytes that it adds.

    The bytes are the most that it adds at any place of XLA's order. Memory that becomes free
    earlier than in XLA's order does not count.
    """
    run = Run(nodes)
    added = np.array([node.grown for node in nodes], np.int64)

    def moves(start: int) -> list[int] | None:
        """Returns the instructions to run now to start a collective, None if it cannot start."""
        found, stack, seconds = {start}, [start], 0.0
        while stack:
            for before in nodes[stack.pop()].before:
                if before in found or before in run.ran:
                    continue
                seconds += nodes[before].seconds
                # Instructions that take longer than the collective do more than prepare it.
                if not nodes[before].movable or seconds > nodes[start].busy + _PREPARATION:
                    return None
                found.add(before)
                stack.append(before)
        return sorted(found)

    def fits(parts: Sequence[int], at: int) -> bool:
        """Adds the results of instructions that run at `at`, and returns True if there is room."""
        more = np.zeros(parts[-1] - at, np.int64)
        for part in parts:
            more[: part - at] += nodes[part].size
        places = added[at : parts[-1]]
        if (places + more > limit).any():
            return False
        places += more
        return True

    # The most urgent collective comes first.
    starts = [i for i, node in enumerate(nodes) if node.done is not None and node.movable]
    waiting = sorted(starts, key=lambda i: nodes[i].done or 0)
    for position, node in enumerate(nodes):
        waiting = [start for start in waiting if start not in run.ran]
        while run.free < run.seconds + node.seconds + _LEAD:
            for start in waiting:
                if (parts := moves(start)) is not None and fits(parts, position):
                    break
            else:
                break
            waiting.remove(start)
            for part in parts:
                run.execute(part)
        if position not in run.ran:
            run.execute(position)
    return run, int(added.max(initial=0))
