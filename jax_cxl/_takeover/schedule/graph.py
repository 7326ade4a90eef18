"""Reads a scheduled computation: what depends on what, and what may move."""

import dataclasses
from collections.abc import Mapping, Sequence

from jax_cxl._takeover.hlo.module import Computation, Instruction, Module
from jax_cxl._takeover.schedule import costs
from jax_cxl._takeover.schedule.memory import VIEWS, Memory
from jax_cxl._takeover.schedule.model import Node, Pair
from jax_cxl._takeover.schedule.sizes import Sizes


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
        peaks: Mapping[int, tuple[int, int]] | None = None,
    ) -> None:
        """Reads a computation.

        `peaks` has, for each called computation, the most bytes that it uses: in XLA's order, and
        in its present order.
        """
        self._memory = Memory(
            module, computation, sequence, {n for c in collectives for n in (c.start, c.done)}
        )
        self._instructions, self._estimates = self._memory.instructions, estimates
        self._peaks = peaks or {}
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
        self._deferrable = self._find_deferrable()
        for pair in self.pairs:
            self._stay_readable(pair)
        # The starts and dones of the collectives.
        self._bounds = {i for pair in self.pairs for i in (pair.start, pair.done)}
        self._dones = {pair.done: pair.start for pair in self.pairs}
        self._sizes = Sizes(self._memory, self._dones)
        self.nodes = [self._node(i) for i in range(len(sequence))]

    def _pair(self, start: int, done: int, collective: Collective) -> Pair:
        operands = self._memory.operands[start]
        given = [sum(map(costs.size, self._instructions[i].shapes)) for i in operands]
        made = [costs.size(shape) for shape in self._instructions[done].shapes]
        seconds = costs.collective(collective.opcode, given, made, collective.ranks)
        kept = done in self._memory.joined or not self._kept.isdisjoint((start, done))
        return Pair(start, done, seconds, sum(given), movable=not kept)

    def _node(self, i: int) -> Node:
        before, parts = tuple(self._before[i]), self._sizes.parts[i]
        reads = tuple(self._memory.operands[i])
        if i in self._bounds:
            # The memory of the result is in use from the start on, and the done only names it.
            is_done = i in self._dones
            return Node(before, size=sum(parts), view=is_done, parts=parts, reads=reads)
        instruction, memory = self._instructions[i], self._memory
        # The bytes used by the computations that the instruction calls, in XLA's order and in the
        # new one.
        inside = after = 0
        if instruction.opcode in costs.CALLERS:
            called = instruction.proto.integers(Instruction.CALLED)
            peaks = [self._peaks.get(number, (0, 0)) for number in called]
            inside, after = (max(each) for each in zip(*peaks, strict=True))
        free = i not in self._kept and i not in memory.joined
        return Node(
            before,
            self._estimates.seconds(memory.computation, instruction),
            sum(parts),
            instruction.opcode in ("parameter", "constant") or (free and memory.is_pure(i)),
            self._is_view(i),
            i in self._deferrable,
            parts,
            self._sizes.named(i) if instruction.opcode in VIEWS else self._sizes.shared(i),
            after,
            after - inside,
            reads,
        )

    def _is_view(self, i: int) -> bool:
        return self._instructions[i].opcode in VIEWS and i not in self._kept

    def _stay_readable(self, pair: Pair) -> None:
        """Makes writes that may overwrite a collective's operand wait for the collective's done."""
        read = self._memory.read(pair.start)
        self._keep(pair.done, read)
        if not all(map(self._memory.is_own, read)):
            # Other instructions may write into the operand's memory, but it is not known which. So
            # the done must come no later than in XLA's order: before the next instruction that does
            # not move, and before each deferrable instruction between the done and that one.
            moving = {i for p in self.pairs if p.movable for i in (p.start, p.done)}
            for i in range(pair.done + 1, len(self._instructions)):
                given = self._instructions[i].opcode in ("parameter", "constant")
                if i not in moving and not given and not self._is_view(i):
                    self._before[i].append(pair.done)
                    if i not in self._deferrable:
                        break

    def _keep(self, reader: int, read: set[int]) -> None:
        """Makes later writes that may overwrite a reader's input wait for the reader."""
        for writer in self._memory.writers:
            if writer > reader and not read.isdisjoint(self._memory.read(writer)):
                self._before[writer].append(reader)

    def _find_deferrable(self) -> set[int]:
        """Returns instructions that wait for a collective and may run later than in XLA's order."""
        dones = {pair.done for pair in self.pairs}
        late, found = set(dones), set()
        for i, instruction in enumerate(self._instructions):
            if i in dones or i in self._kept or late.isdisjoint(self._before[i]):
                continue
            if self._is_view(i):
                late.add(i)
                continue
            read = self._memory.read(i)
            if (
                self._memory.is_pure(i)
                and not self._estimates.products(self._memory.computation, instruction)
                and all(owner in dones or self._memory.is_own(owner) for owner in read)
            ):
                self._keep(i, read)
                late.add(i)
                found.add(i)
        return found
