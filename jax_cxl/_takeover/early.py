"""Makes collectives that go through the pool start earlier than in XLA's schedule."""

import collections
import logging
from typing import NamedTuple

from jax_cxl._takeover.hlo.module import Computation, Instruction, Module
from jax_cxl._takeover.schedule import costs, memory, order

# Instructions that prepare the operand of a collective.
_THROUGH = {"fusion", "convert", "copy", "transpose", "bitcast", "slice", "get-tuple-element"}
_log = logging.getLogger("jax_cxl")


class Call(NamedTuple):
    """A collective: the id of its done, the bytes of its result, and how long it takes."""

    done: int
    size: int
    seconds: float


class Early:
    """The collectives of a scheduled module that have been taken over.

    Attributes:
      calls: for each computation, by its id, the collectives by the ids of their starts.
    """

    def __init__(self, module: Module) -> None:
        self._module = module
        self._estimates = costs.Costs(module)
        self.calls: dict[int, dict[int, Call]] = collections.defaultdict(dict)
        # For each computation, by its id: how many bytes more it may use than in XLA's order.
        self._grown: dict[int, int] = {}

    def add(self, computation: Computation, start: Instruction, opcode: str, ranks: int) -> None:
        done = computation.dones[start.id]
        given = [_size(computation.instruction(number)) for number in start.operands]
        made = [costs.size(shape) for shape in done.shapes]
        seconds = costs.collective(opcode, given, made, ranks)
        self.calls[computation.id][start.id] = Call(done.id, sum(made), seconds)

    @staticmethod
    def bypass_barriers(computation: Computation, start: Instruction) -> None:
        """Makes a start, and the instructions that prepare its operands, read the arrays directly.

        An optimization barrier takes a tuple and returns the same arrays. An instruction that uses
        one of them waits for all of them. `jax.checkpoint` puts the parameters of a layer into one
        tuple with its activations. So the second gather of a parameter, in the backward pass, waits
        for the activations, although the parameter exists earlier.
        """
        seen, stack = {start.id}, [start]
        while stack:
            instruction = stack.pop()
            sources = [memory.source(computation, number) for number in instruction.operands]
            if (operands := [each.id for each in sources]) != instruction.operands:
                instruction.set_operands(operands)
                computation.touch(instruction)
            for before in sources:
                if before.opcode in _THROUGH and before.id not in seen:
                    seen.add(before.id)
                    stack.append(before)

    def move(self, limit: int) -> None:
        """Moves starts. The program's memory may grow by `limit` bytes."""
        for number in self.calls:
            self._arrange(number, limit)

    def _arrange(self, number: int, limit: int) -> None:
        """Moves the starts in the computations that a computation calls, then its own starts."""
        if number in self._grown:
            return
        computation = self._module.computation(number)
        for instruction in computation.instructions():
            if instruction.opcode in costs.CALLERS:
                for called in instruction.proto.integers(Instruction.CALLED):
                    self._arrange(called, limit)
        sequence = self._module.sequence(computation)
        nodes = self.nodes(computation, sequence)
        self._grown[number] = max((node.grown for node in nodes), default=0)
        if number not in self.calls:
            return
        before, (after, added) = order.Run(nodes, range(len(nodes))), order.early(nodes, limit)
        if after.seconds >= before.seconds:
            return
        self._grown[number] = added
        self._module.reorder(computation, [sequence[p] for p in after.positions])
        _log.info(
            "%s, up to %s: %d collectives start early, with at most %d MiB more memory. Estimated:"
            " %.1f ms; as XLA has them start, %.1f ms.",
            *(self._module.name, computation.root.name, len(self.calls[number]), added >> 20),
            *(after.seconds * 1e3, before.seconds * 1e3),
        )

    def nodes(self, computation: Computation, sequence: list[int]) -> list[order.Node]:
        """Returns the instructions of a computation in XLA's order, `sequence`, for the model."""
        position = {number: i for i, number in enumerate(sequence)}
        calls = self.calls.get(computation.id, {})
        dones = {start: call.done for start, call in calls.items()}
        movable = memory.movable(self._module, computation, sequence, dones)
        finished = {*dones.values()}
        nodes = []
        for number in sequence:
            instruction = computation.instruction(number)
            # The memory of a collective's result is in use from its start on. The done names it.
            free = instruction.opcode in memory.FREE or number in finished
            needed = instruction.proto.integers(Instruction.CONTROL_PREDECESSORS)
            before = tuple(position[each] for each in [*instruction.operands, *needed])
            if call := calls.get(number):
                node = order.Node(
                    before,
                    size=call.size,
                    movable=number in movable,
                    done=position[call.done],
                    busy=call.seconds,
                )
            else:
                called = instruction.proto.integers(Instruction.CALLED)
                node = order.Node(
                    before,
                    self._estimates.seconds(computation, instruction),
                    0 if free else _size(instruction),
                    number in movable,
                    grown=max((self._grown.get(each, 0) for each in called), default=0),
                )
            nodes.append(node)
        return nodes


def _size(instruction: Instruction) -> int:
    return sum(map(costs.size, instruction.shapes))
