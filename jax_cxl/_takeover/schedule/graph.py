"""Reads a scheduled computation: what depends on what, and what may move."""

import dataclasses
from collections.abc import Mapping, Sequence

from jax_cxl._takeover.hlo.module import Computation, Instruction, Module
from jax_cxl._takeover.schedule import costs
from jax_cxl._takeover.schedule.memory import VIEWS, Memory
from jax_cxl._takeover.schedule.model import Node, Pair


@dataclasses.dataclass(frozen=True)
class Collective:
    """A collective that goes through the pool, such as an "all-gather"."""

    start: int
    done: int
    opcode: str
    ranks: int


class Graph:
    """A computation in XLA's order."""

    def __init__(
        self,
        module: Module,
        computation: Computation,
        sequence: Sequence[int],
        collectives: Sequence[Collective],
        estimates: costs.Costs,
        grown: Mapping[int, int],
    ) -> None:
        """Reads a computation.

        `grown` tells by how many bytes called computations exceed what they use in XLA's order.
        """
        self._memory = Memory(
            module, computation, sequence, {n for c in collectives for n in (c.start, c.done)}
        )
        self._instructions, self._estimates = self._memory.instructions, estimates
        self._grown = grown
        position = self._memory.position
        self._before: list[list[int]] = []
        # Instructions that must stay: the root, and both ends of a control dependency.
        self._kept = {position[computation.root.id]}
        for i, instruction in enumerate(self._instructions):
            numbers = instruction.proto.integers(Instruction.CONTROL_PREDECESSORS)
            control = [position[number] for number in numbers]
            if control:
                self._kept |= {i, *control}
            self._before.append(list(dict.fromkeys([*self._memory.operands[i], *control])))
        self.pairs = [
            self._pair(position[each.start], position[each.done], each) for each in collectives
        ]
        for pair in self.pairs:
            self._stay_readable(pair)
        self._done_of = {pair.start: pair.done for pair in self.pairs}
        self._start_of = {pair.done: pair.start for pair in self.pairs}
        self.nodes = [self._node(i) for i in range(len(sequence))]

    def _pair(self, start: int, done: int, collective: Collective) -> Pair:
        given = [self._bytes(operand) for operand in self._memory.operands[start]]
        made = [costs.size(shape) for shape in self._instructions[done].shapes]
        seconds = costs.collective(collective.opcode, given, made, collective.ranks)
        kept = done in self._memory.joined or not self._kept.isdisjoint((start, done))
        return Pair(start, done, seconds, movable=not kept)

    def _node(self, i: int) -> Node:
        before, memory, instruction = tuple(self._before[i]), self._memory, self._instructions[i]
        # The memory of a collective's result is in use from the start on, and the done only names
        # it. What the start reads stays in use until the done.
        if i in self._done_of:
            return Node(before, size=self._bytes(self._done_of[i]), reads=self._reads(i))
        if i in self._start_of:
            start = self._start_of[i]
            return Node(before, view=True, reads=(start, *self._reads(start)))
        given, view = instruction.opcode in ("parameter", "constant"), self._is_view(i)
        free = i not in self._kept and i not in memory.joined
        called = instruction.proto.integers(Instruction.CALLED)
        return Node(
            before,
            self._estimates.seconds(memory.computation, instruction),
            0 if given or instruction.opcode in VIEWS else self._bytes(i),
            given or (free and memory.is_pure(i)),
            view,
            () if view else self._reads(i),
            max((self._grown.get(number, 0) for number in called), default=0),
        )

    def _bytes(self, i: int) -> int:
        return sum(map(costs.size, self._instructions[i].shapes))

    def _reads(self, i: int) -> tuple[int, ...]:
        return tuple(self._start_of.get(owner, owner) for owner in self._memory.read(i))

    def _is_view(self, i: int) -> bool:
        return self._instructions[i].opcode in VIEWS and i not in self._kept

    def _stay_readable(self, pair: Pair) -> None:
        """Makes writes that may overwrite a collective's operand wait for the collective's done."""
        read = self._memory.read(pair.start)
        for writer in self._memory.writers:
            if writer > pair.done and not read.isdisjoint(self._memory.read(writer)):
                self._before[writer].append(pair.done)
        if not all(map(self._memory.is_own, read)):
            # Other instructions may write into the operand's memory, but it is not known which. So
            # the done must come no later than in XLA's order: before the next instruction that does
            # not move.
            moving = {i for p in self.pairs if p.movable for i in (p.start, p.done)}
            for i in range(pair.done + 1, len(self._instructions)):
                given = self._instructions[i].opcode in ("parameter", "constant")
                if i not in moving and not given and not self._is_view(i):
                    self._before[i].append(pair.done)
                    break
