"""The model of time: instructions run one after another, and collectives beside them.

Collectives too run one after another, in the order of their starts.
"""

import dataclasses
from collections.abc import Sequence

# A collective counts as over only this many seconds after its estimated end, because the estimate
# may be wrong. After that, a wait for the collective takes no time, and lets the memory of its
# operand be used again.
MARGIN = 0.5e-3


@dataclasses.dataclass(frozen=True)
class Node:
    """An instruction. Instructions are named by their positions in XLA's order.

    Attributes:
      before: the instructions that must come first.
      size: bytes of its result, 0 if they belong to another instruction's result.
      movable: whether it may run earlier, because it writes only its own result, and waits for
        nothing.
      view: whether it only names memory. It may be anywhere before its users.
      reads: the instructions whose results it reads.
      grown: by how many bytes the computations that it calls exceed what they use in XLA's order.
    """

    before: tuple[int, ...] = ()
    seconds: float = 0.0
    size: int = 0
    movable: bool = False
    view: bool = False
    reads: tuple[int, ...] = ()
    grown: int = 0


@dataclasses.dataclass(frozen=True)
class Pair:
    """A collective, from its start to the instruction that waits for it."""

    start: int
    done: int
    seconds: float
    movable: bool = True


class Clock:
    """Executes instructions in the model.

    Attributes:
      positions: the instructions that have run, in their order.
      seconds: how long they took.
      waits: the part of `seconds` in which the program waited for collectives.
      free: when the pool becomes free.
      over: the ends of the collectives for which the program has not waited yet, by their dones.
      emitted: for each instruction, whether it has run.
    """

    def __init__(self, nodes: Sequence[Node], pairs: Sequence[Pair]) -> None:
        self._nodes = nodes
        self._of_start = {pair.start: pair for pair in pairs}
        self._of_done = {pair.done: pair for pair in pairs}
        self.positions: list[int] = []
        self.seconds = self.waits = self.free = 0.0
        self.over: dict[int, float] = {}
        self.emitted = [False] * len(nodes)

    def run(self, position: int) -> None:
        """Executes an instruction, after all instructions that must come before it."""
        stack = [(position, iter(self._nodes[position].before))]
        while stack:
            here, rest = stack[-1]
            if self.emitted[here]:
                stack.pop()
                continue
            following = next((b for b in rest if not self.emitted[b]), None)
            if following is None:
                stack.pop()
                self._execute(here)
            else:
                stack.append((following, iter(self._nodes[following].before)))

    def _execute(self, position: int) -> None:
        self.emitted[position] = True
        self.positions.append(position)
        if position in self._of_start:
            pair = self._of_start[position]
            self.free = max(self.free, self.seconds) + pair.seconds
            self.over[pair.done] = self.free
        elif position in self._of_done:
            wait = max(self.over.pop(position) - self.seconds, 0.0)
            self.waits += wait
            self.seconds += wait
        else:
            self.seconds += self._nodes[position].seconds
