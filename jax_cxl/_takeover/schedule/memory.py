"""Which results of a computation may share memory, and which instructions write into it.

A module shows how its instructions depend on each other. It does not show which instructions write
into the memory of an operand. In XLA's own order, all instructions that read the old contents
come before such a write. Any other order must preserve that.
"""

import functools
from collections.abc import Collection, Iterable, Sequence

from jax_cxl._takeover.hlo.module import Computation, Instruction, Module

# Instructions that write nothing but their results, into memory of their own.
_PURE = {
    *("fusion", "convert", "copy", "transpose", "slice", "concatenate", "reshape", "broadcast"),
    *("reduce", "pad", "iota", "dynamic-slice", "add", "multiply", "subtract", "divide"),
}
# Instructions by which a fusion may write into the memory of an operand. Names and source lines may
# contain these texts too, and may differ between processes. So only opcodes count.
_IN_PLACE = (b"dynamic-update-slice", b"scatter", b"custom-call")
_INSIDE = (*_IN_PLACE, b"fusion")
# Instructions whose result is in the memory of their operands. XLA removes barriers later.
VIEWS = ("bitcast", "get-tuple-element", "tuple", "opt-barrier")


def tuple_of(computation: Computation, instruction: Instruction) -> Instruction:
    """Returns the instruction, behind any barriers, that made the tuple of a get-tuple-element."""
    whole = computation.instruction(instruction.operands[0])
    while whole.opcode == "opt-barrier":
        whole = computation.instruction(whole.operands[0])
    return whole


def element(computation: Computation, instruction: Instruction) -> int | None:
    """Returns the id of the array that an instruction takes from a tuple, looking through barriers.

    Returns None if the instruction does something else, or the tuple is not built here.
    """
    if instruction.opcode != "get-tuple-element":
        return None
    whole = tuple_of(computation, instruction)
    if whole.opcode != "tuple":
        return None
    return whole.operands[instruction.proto.get(Instruction.TUPLE_INDEX)]


class Memory:
    """The memory of a computation. Instructions are named by their positions in XLA's order.

    Attributes:
      owners: for each instruction, the instructions whose memory its result may share.
      writers: instructions that may write into the memory of an operand.
      joined: instructions whose result may share memory with another result: an instruction writes
        into it, or it is a result of the computation, which may have the memory of an argument.
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
          collectives: starts and dones of the pool, which never write into their operands.
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
        """Returns whether an instruction writes only its own result, and waits for nothing."""
        proto = self._instructions[i].proto
        if self._instructions[i].opcode not in _PURE or proto.has(Instruction.ALIASING):
            return False
        if self._instructions[i].opcode != "fusion":
            return True
        return not self.writes_in_place(proto.integers(Instruction.CALLED))

    def writes_in_place(self, called: Iterable[int]) -> bool:
        """Whether a computation, or a fusion in it, has an instruction that writes in place."""
        for number in called:
            if not self._module.contains_any(number, _INSIDE):
                continue
            for instruction in self._module.computation(number).with_any(_INSIDE):
                if instruction.opcode.encode() in _IN_PLACE:
                    return True
                inside = instruction.proto.integers(Instruction.CALLED)
                if instruction.opcode == "fusion" and self.writes_in_place(inside):
                    return True
        return False

    def is_own(self, i: int) -> bool:
        """Whether the result of an instruction is in memory of its own."""
        instruction = self._instructions[i]
        if instruction.opcode == "custom-call":
            proto = instruction.proto
            return not (proto.has(Instruction.ALIASING) or proto.has(Instruction.HAS_SIDE_EFFECT))
        return instruction.opcode in ("dot", "convolution") or self.is_pure(i)

    def _below(self, instruction: Instruction) -> list[frozenset[int]]:
        """Returns the owners of each operand of which a view's result consists."""
        part = element(self._computation, instruction)
        operands = instruction.operands if part is None else [part]
        return [self.owners[self._position[o]] for o in operands]
