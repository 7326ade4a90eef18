"""Makes collectives that go through the pool start earlier than in XLA's schedule."""

import collections
import logging

from jax_cxl._takeover.hlo.module import Computation, Instruction, Module
from jax_cxl._takeover.schedule import costs, graph, memory, order

# Instructions that prepare the operand of a collective.
_THROUGH = {"fusion", "convert", "copy", "transpose", "bitcast", "slice", "get-tuple-element"}
_log = logging.getLogger("jax_cxl")


class Early:
    """The collectives of a scheduled module that have been taken over."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._found: dict[int, list[graph.Collective]] = collections.defaultdict(list)
        self._estimates = costs.Costs(module)
        # For each computation, by its id: how many bytes more it may use than in XLA's order.
        self._grown: dict[int, int] = {}

    def add(self, computation: Computation, start: Instruction, opcode: str, ranks: int) -> None:
        """Notes a collective."""
        done = computation.done_of(start)
        assert done is not None
        self._found[computation.id].append(graph.Collective(start.id, done.id, opcode, ranks))

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
        """Moves starts, and dones with them. The program's memory may grow by `limit` bytes."""
        for number in self._found:
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
        starting = self._found.get(number, [])
        found = graph.Graph(
            self._module, computation, sequence, starting, self._estimates, self._grown
        )
        nodes, pairs = found.nodes, found.pairs
        self._grown[number] = max((node.grown for node in nodes), default=0)
        if not pairs or (earlier := order.early(nodes, pairs, limit)) is None:
            return
        after, self._grown[number] = earlier
        self._module.reorder(computation, [sequence[p] for p in after.positions])
        before = order.simulate(nodes, pairs, range(len(nodes)))
        _log.info(
            "%s, up to %s: %d collectives start early, with at most %d MiB more memory. Estimated:"
            " %.1f ms; as XLA has them start, %.1f ms.",
            *(self._module.name, computation.root.name, len(pairs), self._grown[number] >> 20),
            *(after.seconds * 1e3, before.seconds * 1e3),
        )
