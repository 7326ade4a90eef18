"""Makes collectives that go through the pool start earlier than in XLA's schedule."""

import collections
import logging
from collections.abc import Sequence

from jax_cxl._takeover.hlo.module import Computation, Instruction, Module
from jax_cxl._takeover.schedule import costs, graph, memory, order, usage
from jax_cxl._takeover.schedule.model import Clock

# Instructions that prepare the operand of a collective.
_THROUGH = {"fusion", "convert", "copy", "transpose", "bitcast", "slice", "get-tuple-element"}
_log = logging.getLogger("jax_cxl")


class Early:
    """The collectives of a scheduled module that have been taken over."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._found: dict[int, list[graph.Collective]] = collections.defaultdict(list)
        self._estimates = costs.Costs(module)
        # For each computation, by its id: the most bytes that it uses, first in XLA's order, and
        # then in the new order.
        self._peaks: dict[int, tuple[int, int]] = {}

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
        if number in self._peaks:
            return
        computation = self._module.computation(number)
        for instruction in computation.instructions():
            if instruction.opcode in costs.CALLERS:
                for called in instruction.proto.integers(Instruction.CALLED):
                    self._arrange(called, limit)
        sequence = self._module.sequence(computation)
        starting = self._found.get(number, [])
        found = graph.Graph(
            self._module, computation, sequence, starting, self._estimates, self._peaks
        )
        most = usage.most_by_xla(found.nodes, found.pairs)
        after = order.early(found.nodes, found.pairs, limit) if found.pairs else None
        positions: Sequence[int] = range(len(sequence))
        if after is not None:
            self._tell(computation, found, after)
            positions = after.positions
            self._module.reorder(computation, [sequence[p] for p in positions])
        now = int(usage.used(found.nodes, found.pairs, positions).max(initial=0))
        self._peaks[number] = most, now

    def _tell(self, computation: Computation, found: graph.Graph, after: Clock) -> None:
        """Logs the times that the model expects."""
        nodes, pairs = found.nodes, found.pairs
        before = order.simulate(nodes, pairs, range(len(nodes)))
        mib = [usage.used(nodes, pairs, o.positions).max() >> 20 for o in (before, after)]
        _log.info(
            "%s, up to %s: %d collectives start early. Estimated: %.1f ms and %d MiB; as XLA has"
            " them start, %.1f ms and %d MiB.",
            *(self._module.name, computation.root.name, len(pairs)),
            *(after.seconds * 1e3, mib[1], before.seconds * 1e3, mib[0]),
        )
