"""Whose memory an instruction reads and writes.

A module says what depends on what. It does not say which instructions write into the memory of an
operand. XLA has made sure that all who read the old contents come before, in its own order.
"""

import functools
from collections.abc import Collection, Sequence

from jax_cxl._hlo.module import Computation, Instruction, Module

# Instructions that write nothing but their results, into memory of their own.
_PURE = {
    *("fusion", "convert", "copy", "transpose", "slice", "concatenate", "reshape", "broadcast"),
    *("reduce", "pad", "iota", "dynamic-slice", "add", "multiply", "subtract", "divide"),
}
# Texts in a fusion that may write into the memory of an operand.
_IN_PLACE = (b"dynamic-update-slice", b"scatter", b"custom-call")
# Instructions whose result is in the memory of their operands. XLA removes barriers later.
VIEWS = ("bitcast", "get-tuple-element", "tuple", "opt-barrier")


def element(computation: Computation, instruction: Instruction) -> int | None:
    """Returns the id of the array that a part of a tuple is, None if there is no such tuple."""
    if instruction.opcode != "get-tuple-element":
        return None
    whole = computation.instruction(instruction.operands[0])
    while whole.opcode == "opt-barrier":
        whole = computation.instruction(whole.operands[0])
    if whole.opcode != "tuple":
        return None
    return whole.operands[instruction.proto.get(Instruction.TUPLE_INDEX)]


class Memory:
    """The memory of a computation. Instructions are named by their positions in XLA's order.

    Attributes:
      owners: for each instruction, those whose memory its result may be.
      writers: instructions that may write into the memory of an operand.
      joined: instructions whose memory may be that of another result too: an instruction writes
        into it, or it leaves the computation, where an argument may have the same memory.
    """

    def __init__(
        self,
        module: Module,
        computation: Computation,
        instructions: Sequence[Instruction],
        position: dict[int, int],
        collectives: Collection[int],
    ) -> None:
        """Reads a computation.

        Args:
          module: the module.
          computation: the computation.
          instructions: its instructions in XLA's order.
          position: the position of each instruction by its id.
          collectives: starts and dones of the pool, which read their operands only.
        """
        self._module, self._computation = module, computation
        self._instructions, self._position = instructions, position
        self.owners: list[frozenset[int]] = []
        for i, instruction in enumerate(instructions):
            below = self._below(instruction) if instruction.opcode in VIEWS else [frozenset((i,))]
            self.owners.append(frozenset().union(*below))
        kept = (*VIEWS, "parameter", "constant")
        self.writers = [
            i
            for i, instruction in enumerate(instructions)
            if instruction.opcode not in kept and not self.is_own(i) and i not in collectives
        ]
        self.joined = set(self.owners[position[computation.root.id]])
        for writer in self.writers:
            self.joined |= self.read(writer)

    def read(self, i: int) -> set[int]:
        """Returns the instructions whose memory an instruction reads."""
        operands = self._instructions[i].operands
        return {owner for o in operands for owner in self.owners[self._position[o]]}

    @functools.cache  # noqa: B019 (the object lives as long as the cache)
    def is_pure(self, i: int) -> bool:
        """Whether an instruction writes nothing but its result, and waits for nothing."""
        proto = self._instructions[i].proto
        if self._instructions[i].opcode not in _PURE or proto.has(Instruction.ALIASING):
            return False
        if self._instructions[i].opcode != "fusion":
            return True
        called = proto.integers(Instruction.CALLED)
        return not any(self._module.computation(c).contains(_IN_PLACE) for c in called)

    def is_own(self, i: int) -> bool:
        """Whether the result of an instruction is in memory of its own."""
        instruction = self._instructions[i]
        if instruction.opcode == "custom-call":
            proto = instruction.proto
            return not (proto.has(Instruction.ALIASING) or proto.has(Instruction.HAS_SIDE_EFFECT))
        return instruction.opcode in ("dot", "convolution") or self.is_pure(i)

    def _below(self, instruction: Instruction) -> list[frozenset[int]]:
        """Returns the owners of the operands that the result of a view is."""
        part = element(self._computation, instruction)
        operands = instruction.operands if part is None else [part]
        return [self.owners[self._position[o]] for o in operands]
