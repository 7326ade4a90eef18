"""Replaces starts and dones that XLA's scheduler has already placed.

The start becomes calls of `jax_cxl_start`, and the done becomes calls of `jax_cxl_done`, at the
same places of the schedule. So the same operations overlap with the collective.
"""

from typing import NamedTuple

from jax_cxl._lowering import contract
from jax_cxl._takeover.build import Builder, Value
from jax_cxl._takeover.hlo import shape as shapes
from jax_cxl._takeover.hlo.module import Computation, Instruction
from jax_cxl._takeover.hlo.shape import Shape
from jax_cxl._takeover.match import NotTakenError
from jax_cxl._takeover.schedule import memory

# The token that a start returns besides its result. No instruction reads it.
_TOKEN = Shape("uint32", (1,), (0,))


class _Started(NamedTuple):
    """A call of `jax_cxl_start`.

    Attributes:
      operand: the array that it reads until it is done.
      result: the array that it writes until it is done.
      number: the instruction that is its result.
    """

    operand: Value
    result: Value
    number: Instruction


class PairBuilder(Builder):
    """Builds the replacement of a start or of its done.

    The module has been scheduled, and its layouts are fixed, so only calls may be added.
    """

    def __init__(self, computation: Computation, start: Instruction) -> None:
        super().__init__(computation, start)
        self._done = _done_of(computation, start)
        self._started: list[_Started] = []

    def results(self) -> list[Shape]:
        return self._done.shapes

    def emit(
        self,
        opcode: str,
        shape: Shape,
        operands: list[Value],
        dimensions: list[int] | None = None,
    ) -> Value:
        raise NotTakenError(f"its blocks are not adjacent in memory (a {opcode} would be needed)")

    def call(
        self, target: str, shape: Shape, operands: list[Value], config: str, aliases: int | None
    ) -> Value:
        if target != contract.COLLECTIVE_TARGET:
            raise NotTakenError(f"XLA starts it asynchronously, which {target} cannot do")
        both = shapes.tuple_of([shape, _TOKEN])
        pair = self._call(contract.START_TARGET, both, shape, operands, config, None)
        self._keep(operands[0])
        # Without a side effect XLA could merge two equal starts, each of which has a done.
        self._new[-1].proto.set(Instruction.HAS_SIDE_EFFECT, 1)
        result = self._emit("get-tuple-element", shape.encode(), [pair], shape, None)
        self._started.append(_Started(operands[0], result, self._new[-1]))
        return result

    def _keep(self, operand: Value) -> None:
        """Protects the operand from XLA's rematerialization, which runs after the hook.

        If memory is short, rematerialization would give the done another copy of the operand, and
        would reuse the operand's memory while the collective still reads it. But it never
        recomputes an instruction that is a control predecessor of an instruction that has run.
        """
        made = self._computation.instruction(operand.id)
        while made.opcode in memory.VIEWS and made.operands:
            part = memory.element(self._computation, made)
            made = self._computation.instruction(made.operands[0] if part is None else part)
        if made.opcode in ("parameter", "constant"):
            return
        proto = self._new[-1].proto
        before = [*proto.integers(Instruction.CONTROL_PREDECESSORS), made.id]
        proto.set_integers(Instruction.CONTROL_PREDECESSORS, list(dict.fromkeys(before)))

    def finish(self, results: list[Value]) -> None:
        self._put()
        done = _DoneBuilder(self._computation, self._done)
        # The last result has the id of the old start.
        numbered = [s.result._replace(id=s.number.id) for s in self._started]
        parts = [
            done.done(started.operand, result)
            for started, result in zip(self._started, numbered, strict=True)
        ]
        done.finish(parts)


class _DoneBuilder(Builder):
    """Builds the replacement of a done."""

    def done(self, operand: Value, result: Value) -> Value:
        """Waits for a start; the result stays where it is."""
        value = self.call(contract.DONE_TARGET, result.shape, [operand, result], "{}", aliases=1)
        self._new[-1].proto.set(Instruction.HAS_SIDE_EFFECT, 1)
        return value


def _done_of(computation: Computation, start: Instruction) -> Instruction:
    done = computation.done_of(start)
    if done is not None:
        return done
    raise NotTakenError("it is started and has no done of its own")
