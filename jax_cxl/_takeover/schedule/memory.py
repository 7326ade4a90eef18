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
# Instructions whose result is in the memory of their operands. Barriers are among them, because XLA
# removes them later.
VIEWS = ("bitcast", "get-tuple-element", "tuple", "opt-barrier")


def source(computation: Computation, number: int) -> Instruction:
    """Follows get-tuple-elements from an instruction to the instruction that computed the array.

    Returns the get-tuple-element itself if this computation does not build its tuple.
    """
    instruction = computation.instruction(number)
    while instruction.opcode == "get-tuple-element":
        whole = computation.instruction(instruction.operands[0])
        while whole.opcode == "opt-barrier":
            whole = computation.instruction(whole.operands[0])
        if whole.opcode != "tuple":
            break
        part = whole.operands[instruction.proto.get(Instruction.TUPLE_INDEX)]
        instruction = computation.instruction(part)
    return instruction


class Memory:
    """The memory of a computation. Instructions are named by their positions in XLA's order.

    Attributes:
      position: the position of each instruction by its id.
      owners: for each instruction, the instructions whose memory its result may share.
      writers: instructions that may write into the memory of an operand.
      joined: instructions whose result may share memory with another result. Either an instruction
        writes into this memory, or the computation returns this result, which may then be in the
        memory of an argument.
    """

    def __init__(
        self,
        module: Module,
        computation: Computation,
        sequence: Sequence[int],
        collectives: Collection[int],
    ) -> None:
        """Reads a computation.

        Starts and dones of the pool, the ids in `collectives`, never write into their operands.
        """
        self.module, self.computation = module, computation
        self.instructions = [computation.instruction(number) for number in sequence]
        self.position = {number: i for i, number in enumerate(sequence)}
        self.operands = [[self.position[o] for o in each.operands] for each in self.instructions]
        # Whether an instruction writes only its own result, and waits for nothing.
        self.is_pure = functools.cache(self._is_pure)
        self.owners: list[frozenset[int]] = []
        for i, instruction in enumerate(self.instructions):
            own = frozenset((i,))
            if instruction.opcode in VIEWS:
                part = self.source(i)
                parts = self.operands[i] if part == i else [part]
                own = frozenset().union(*(self.owners[p] for p in parts))
            self.owners.append(own)
        kept = (*VIEWS, "parameter", "constant")
        self.writers = [
            i
            for i, instruction in enumerate(self.instructions)
            if not (instruction.opcode in kept or self.is_own(i) or instruction.id in collectives)
        ]
        self.joined = set(self.owners[self.position[computation.root.id]])
        for writer in self.writers:
            self.joined |= self.read(writer)

    def read(self, i: int) -> set[int]:
        """Returns the instructions whose memory an instruction reads."""
        return {owner for operand in self.operands[i] for owner in self.owners[operand]}

    def source(self, i: int) -> int:
        """Returns the position of what the function `source` returns for an instruction."""
        return self.position[source(self.computation, self.instructions[i].id).id]

    def _is_pure(self, i: int) -> bool:
        opcode, proto = self.instructions[i].opcode, self.instructions[i].proto
        if opcode not in _PURE or proto.has(Instruction.ALIASING):
            return False
        return opcode != "fusion" or not self.writes_in_place(proto.integers(Instruction.CALLED))

    def writes_in_place(self, called: Iterable[int]) -> bool:
        """Whether a computation, or a fusion in it, has an instruction that writes in place."""
        for number in called:
            if not self.module.contains_any(number, _INSIDE):
                continue
            for instruction in self.module.computation(number).with_any(_INSIDE):
                if instruction.opcode.encode() in _IN_PLACE:
                    return True
                inside = instruction.proto.integers(Instruction.CALLED)
                if instruction.opcode == "fusion" and self.writes_in_place(inside):
                    return True
        return False

    def is_own(self, i: int) -> bool:
        """Whether the result of an instruction is in memory of its own."""
        instruction = self.instructions[i]
        if instruction.opcode == "custom-call":
            proto = instruction.proto
            return not (proto.has(Instruction.ALIASING) or proto.has(Instruction.HAS_SIDE_EFFECT))
        return instruction.opcode in ("dot", "convolution") or self.is_pure(i)
