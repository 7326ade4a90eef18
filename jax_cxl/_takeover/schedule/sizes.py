"""How many bytes of memory the results of a computation's instructions take.

Memory that is counted in another computation, or that belongs to arguments, is not counted again.
Otherwise the estimate for XLA's own order would be too large, and early starts would be given the
difference, which does not exist.
"""

from collections.abc import Mapping

from jax_cxl._takeover.hlo.module import Instruction
from jax_cxl._takeover.schedule import costs
from jax_cxl._takeover.schedule.memory import VIEWS, Memory, tuple_of

# An instruction by its position in XLA's order, and the number of a part of its result (None: all
# parts).
Name = tuple[int, int | None]

# A part of the result of these instructions may have the memory of an operand of the same size.
_IN_PLACE = {
    *("fusion", "dynamic-update-slice", "scatter", "set-dimension-size", "ragged-all-to-all"),
    "async-update",
}


class Sizes:
    """The bytes of results. Instructions are named by their positions in XLA's order.

    `parts` has, for each instruction, the bytes that each part of its result takes.
    """

    def __init__(self, memory: Memory, starts: Mapping[int, int]) -> None:
        """Reads a computation. `starts` has the start of each done of a collective of the pool."""
        self._memory, self._starts = memory, starts
        self._dones = {start: done for done, start in starts.items()}
        # Results that need no memory of their own, because they lie in the memory of an argument,
        # or of the result of a loop or a branch.
        self._counted: set[Name] = set()
        module, computation = memory.module, memory.computation
        # The parts of the entry's result that are in the memory of arguments.
        donated = {part[:1] for part in module.donated}
        root = memory.position[computation.root.id]
        outputs: list[tuple[tuple[int, ...], int]] = [((), root)]
        if computation.root.opcode == "tuple":
            outputs = [((part,), i) for part, i in enumerate(memory.operands[root])]
        for part, i in outputs:
            if part in donated or computation is not module.entry:
                self._counted.update(self.named(i))
        # For instructions that write in place: the owners of the memory that their results have.
        self._shared: dict[int, tuple[Name, ...]] = {}
        self.parts = [self._find(i) for i in range(len(memory.instructions))]

    def shared(self, i: int) -> tuple[Name, ...]:
        """Returns the owner of the memory of the result of an instruction that is not a view."""
        return self._shared.get(i, ())

    def named(self, i: int) -> tuple[Name, ...]:
        """Returns the owner of the memory of a result: the instruction itself, unless it is a view.

        The result of a done lies in the memory of its start.
        """
        instruction = self._memory.instructions[i]
        if instruction.opcode == "get-tuple-element":
            return self._element(i)
        if instruction.opcode in VIEWS:
            return tuple(dict.fromkeys(n for o in self._memory.operands[i] for n in self.named(o)))
        return ((self._starts.get(i, i), None),)

    def _element(self, i: int) -> tuple[Name, ...]:
        memory = self._memory
        part = memory.source(i)
        if part != i:
            return self.named(part)
        index = memory.instructions[i].proto.get(Instruction.TUPLE_INDEX)
        whole = memory.position[tuple_of(memory.computation, memory.instructions[i]).id]
        opcode = memory.instructions[whole].opcode
        if opcode == "while":
            carried = memory.operands[whole][0]
            if memory.instructions[carried].opcode == "tuple":
                return self.named(memory.operands[carried][index])
        if opcode in VIEWS:
            return self.named(whole)
        # The result of a start may contain tuples. Their parts are not told apart here.
        return ((self._starts.get(whole, whole), None if opcode.endswith("-start") else index),)

    def _find(self, i: int) -> tuple[int, ...]:
        instruction = self._memory.instructions[i]
        if i in self._starts or instruction.opcode in (*VIEWS, "parameter", "constant"):
            return (0,)
        if instruction.opcode == "while":
            self._shared[i] = self.named(self._memory.operands[i][0])
            return (0,)
        arrays = self._memory.instructions[self._dones.get(i, i)].leaves
        sizes = [sum(map(costs.size, part)) for part in arrays]
        if i in self._memory.writers and self._is_in_place(instruction):
            sizes = self._share(i, sizes)
        if (i, None) in self._counted:
            return (0,)
        return tuple(0 if (i, k) in self._counted else n for k, n in enumerate(sizes)) or (0,)

    def _is_in_place(self, instruction: Instruction) -> bool:
        opcode = instruction.opcode
        if opcode == "custom-call":
            return instruction.proto.has(Instruction.ALIASING)
        return opcode in _IN_PLACE or opcode.endswith(("-start", "-done"))

    def _share(self, i: int, sizes: list[int]) -> list[int]:
        """Returns the sizes of the parts of a result that do not lie in an operand's memory."""
        instruction = self._memory.instructions[i]
        given = [
            (costs.size(shape), operand)
            for operand in self._memory.operands[i]
            for part in self._memory.instructions[operand].leaves
            for shape in part
        ]
        own: list[int] = []
        shared: list[Name] = []
        if instruction.opcode.endswith("-start") and sizes[0] == sum(n for n, _ in given):
            # The first part of the start's result consists of its operands.
            shared += [name for _, operand in given for name in self.named(operand)]
            own.append(0)
            called = instruction.proto.integers(Instruction.CALLED)
            is_async = instruction.opcode == "async-start"
            if not (is_async and self._memory.writes_in_place(called)):
                given = []
        for num_bytes in sizes[len(own) :]:
            found = next((g for g in given if g[0] == num_bytes > 0), None)
            if found is not None:
                given.remove(found)
                shared += self.named(found[1])
            own.append(num_bytes if found is None else 0)
        self._shared[i] = tuple(dict.fromkeys(shared))
        return own
