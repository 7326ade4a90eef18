"""Replaces starts and dones that XLA's scheduler has already placed.

The start becomes calls of `jax_cxl_start`, and the done becomes calls of `jax_cxl_done`, at the
same places of the schedule. So the same operations overlap with the collective.
"""

from typing import Any

from jax_cxl._lowering import contract
from jax_cxl._takeover.build import Builder, Value
from jax_cxl._takeover.hlo.module import Computation, Instruction
from jax_cxl._takeover.hlo.shape import Shape
from jax_cxl._takeover.match import NotTakenError
from jax_cxl._takeover.schedule import memory

# The token that a start returns besides its result. No instruction reads it.
_TOKEN = Shape("uint32", (1,), (0,))


class PairBuilder(Builder):
    """Builds the replacement of a start and its done.

    The module has been scheduled, and its layouts are fixed, so only calls may be added.
    """

    def __init__(self, computation: Computation, start: Instruction) -> None:
        super().__init__(computation, start)
        done = computation.dones.get(start.id)
        if done is None:
            raise NotTakenError(
                "XLA starts it asynchronously, and no instruction waits for it alone"
            )
        self._done = done
        # For each call of `jax_cxl_start`, the array that it reads until it is done, and the
        # instruction whose result it writes until then.
        self._started: list[tuple[Value, Instruction]] = []

    def results(self) -> list[Shape]:
        return self._done.shapes

    def emit(self, opcode: str, shape: Shape, operands: list[Value]) -> Value:
        raise NotTakenError(f"its blocks are not adjacent in memory (a {opcode} would be needed)")

    def call(
        self,
        target: str,
        results: list[Shape],
        operands: list[Value],
        config: str,
        **options: Any,
    ) -> Value:
        if target != contract.COLLECTIVE_TARGET:
            raise NotTakenError(
                f"XLA starts it asynchronously, and the pool has no asynchronous {target}"
            )
        # Without a side effect XLA could merge two equal starts, each of which has a done.
        both, start = [*results, _TOKEN], contract.START_TARGET
        result = super().call(start, both, operands, config, side_effect=True)
        call, element = self._new[-2:]
        self._keep(call, operands[0])
        self._started.append((operands[0], element))
        return result

    def _keep(self, call: Instruction, operand: Value) -> None:
        """Protects the operand from XLA's rematerialization, which runs after the hook.

        If memory is short, rematerialization would give the done another copy of the operand, and
        would reuse the operand's memory while the collective still reads it. But it never
        recomputes an instruction that is a control predecessor of an instruction that has run. So
        the instruction that computes the operand becomes a control predecessor of the call.
        """
        made = memory.source(self._computation, operand.id)
        while made.opcode in memory.VIEWS and made.operands:
            made = memory.source(self._computation, made.operands[0])
        if made.opcode in ("parameter", "constant"):
            return
        before = [*call.proto.integers(Instruction.CONTROL_PREDECESSORS), made.id]
        call.proto.set_integers(Instruction.CONTROL_PREDECESSORS, dict.fromkeys(before))

    def finish(self, results: list[Value]) -> None:
        self._replace()
        done = Builder(self._computation, self._done)
        waited = []
        for operand, element in self._started:
            # Read the id only now: `_replace` has given the old start's id to the last of these.
            result = Value(element.id, element.shapes[0])
            both = [operand, result]
            waited.append(
                done.call(
                    contract.DONE_TARGET, [result.shape], both, "{}", aliases=1, side_effect=True
                )
            )
        done.finish(waited)
