"""Reads a scheduled computation: what depends on what, and what may move."""

import dataclasses
from collections.abc import Mapping, Sequence

from jax_cxl._takeover.hlo.module import Computation, Instruction, Module
from jax_cxl._takeover.schedule import costs
from jax_cxl._takeover.schedule.memory import VIEWS, Memory
from jax_cxl._takeover.schedule.model import Node, Pair
from jax_cxl._takeover.schedule.sizes import Sizes

# Instructions that execute other computations, whose memory is then in use too.
CALLERS = ("while", "conditional", "call")


@dataclasses.dataclass(frozen=True)
class Collective:
    """A collective that goes through the pool.

    Attributes:
      start: the id of its start.
      done: the id of its done.
      opcode: what it does, such as "all-gather".
      ranks: number of ranks of a group.
    """

    start: int
    done: int
    opcode: str
    ranks: int


class Graph:
    """A computation in XLA's order.

    Attributes:
      nodes: its instructions.
      pairs: its collectives.
    """

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

        Args:
          module: the module.
          computation: the computation.
          sequence: the ids of its instructions in XLA's order.
          collectives: its collectives that go through the pool.
          estimates: how long instructions take.
          peaks: by the id of a called computation, the largest number of bytes that it uses: in
            XLA's order, and in its present order.
        """
        self._computation, self._estimates = computation, estimates
        self._peaks = peaks or {}
        self._instructions = [computation.instruction(number) for number in sequence]
        self._position = {number: i for i, number in enumerate(sequence)}
        # The starts and dones of the collectives.
        self._bounds = {self._position[n] for c in collectives for n in (c.start, c.done)}
        self._memory = Memory(module, computation, self._instructions, self._position, self._bounds)
        self._before: list[list[int]] = []
        # Instructions that must stay: the root, and both ends of a control dependency.
        self._kept = {self._position[computation.root.id]}
        for i, instruction in enumerate(self._instructions):
            control = instruction.proto.integers(Instruction.CONTROL_PREDECESSORS)
            if control:
                self._kept |= {i, *(self._position[number] for number in control)}
            every = dict.fromkeys([*instruction.operands, *control])
            self._before.append([self._position[number] for number in every])
        self.pairs = [self._pair(collective) for collective in collectives]
        self._deferrable = self._find_deferrable()
        for pair in self.pairs:
            self._stay_readable(pair)
        self._dones = {pair.done: pair.start for pair in self.pairs}
        arguments = self._instructions, self._position, self._memory, self._dones
        self._sizes = Sizes(module, computation, *arguments)
        self.nodes = [self._node(i) for i in range(len(sequence))]

    def _pair(self, collective: Collective) -> Pair:
        start, done = self._position[collective.start], self._position[collective.done]
        operands = [self._position[o] for o in self._instructions[start].operands]
        given = [sum(map(costs.size, self._instructions[i].shapes)) for i in operands]
        made = [costs.size(shape) for shape in self._instructions[done].shapes]
        seconds = costs.collective(collective.opcode, given, made, collective.ranks)
        kept = done in self._memory.joined or not self._kept.isdisjoint((start, done))
        return Pair(start, done, seconds, sum(given), movable=not kept)

    def _node(self, i: int) -> Node:
        before, parts = tuple(self._before[i]), self._sizes.parts(i)
        reads = tuple(self._position[number] for number in self._instructions[i].operands)
        if i in self._bounds:
            # The memory of the result is in use from the start on, and the done only names it.
            is_done = i in self._dones
            return Node(before, size=sum(parts), view=is_done, parts=parts, reads=reads)
        instruction, memory = self._instructions[i], self._memory
        view = self._is_view(i)
        inside, after = self._inside(instruction)
        free = i not in self._kept and i not in memory.joined
        return Node(
            before,
            self._estimates.seconds(self._computation, instruction),
            sum(parts),
            instruction.opcode in ("parameter", "constant") or (free and memory.is_pure(i)),
            view,
            i in self._deferrable,
            parts,
            self._sizes.named(i) if instruction.opcode in VIEWS else self._sizes.shared(i),
            after,
            after - inside,
            reads,
        )

    def _inside(self, instruction: Instruction) -> tuple[int, int]:
        """Returns the bytes used by the computations that an instruction calls."""
        if instruction.opcode not in CALLERS:
            return 0, 0
        called = instruction.proto.integers(Instruction.CALLED)
        peaks = [self._peaks.get(number, (0, 0)) for number in called]
        return max(p[0] for p in peaks), max(p[1] for p in peaks)

    def _is_view(self, i: int) -> bool:
        return self._instructions[i].opcode in VIEWS and i not in self._kept

    def _stay_readable(self, pair: Pair) -> None:
        """Keeps writes that may overwrite a collective's operand behind the collective's done."""
        read = self._memory.read(pair.start)
        self._keep(pair.done, read)
        if not all(map(self._memory.is_own, read)):
            # Unknown instructions may share this memory. So the done must come no later than in
            # XLA's order: before the first instruction after it that does not move, and before
            # those that may be put off until then, or longer.
            moving = {i for p in self.pairs if p.movable for i in (p.start, p.done)}
            for i in range(pair.done + 1, len(self._instructions)):
                given = self._instructions[i].opcode in ("parameter", "constant")
                if i not in moving and not given and not self._is_view(i):
                    self._before[i].append(pair.done)
                    if i not in self._deferrable:
                        break

    def _keep(self, reader: int, read: set[int]) -> None:
        """Keeps writes that may overwrite a reader's input behind the reader, as in XLA's order."""
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
                and not self._estimates.has_product(self._computation, instruction)
                and all(owner in dones or self._memory.is_own(owner) for owner in read)
            ):
                self._keep(i, read)
                late.add(i)
                found.add(i)
        return found
