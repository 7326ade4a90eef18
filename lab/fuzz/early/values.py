"""Which values a module computes, and which of them share memory.

The rules are those of XLA's dataflow and alias analyses, which run before its buffer assignment.
These analyses put values into one buffer if they must share memory in every order of the
instructions.
"""

import collections
from collections.abc import Iterator

from lab.fuzz.early.text import Index, Instruction, Module, leaves

# An array: the instruction that computes it, and its index in the instruction's result.
Value = tuple[str, Index]

VIEWS = ("tuple", "get-tuple-element", "bitcast", "opt-barrier", "add-dependency", "parameter")
# A done returns one element of its start's result. Most starts return (operands, result, ...), so
# their done returns element 1. This includes "fusion-start", XLA's notation for an async-start of a
# single fusion. The instructions listed here return another element, or the whole result, ().
_OTHER_DONES = {"async-update": (), "copy-done": (0,)}
_OTHER_STARTS = ("copy-start", "send-start", "recv-start")


class Values:
    """The values of a module.

    Attributes:
      memory: parents of a union-find. The root of a value stands for all values in its memory.
    """

    def __init__(self, module: Module) -> None:
        self._module = module
        self.instructions = {
            i.name: i for c in module.computations.values() for i in c.instructions.values()
        }
        # Maps a parameter, or a result that a loop does not change, to the value that it equals.
        self._same: dict[Value, Value] = {}
        self.memory: dict[Value, Value] = {}
        self._find_same()
        self._unite_all()

    def value(self, name: str, index: Index = ()) -> Value:
        """Returns the value at an index of the result of the instruction `name`."""
        while True:
            following = self._same.get((name, index)) or self._forwarded(name, index)
            if following is None:
                return name, index
            name, index = following

    def of(self, name: str) -> list[Value]:
        """Returns all values in the result of the instruction `name`."""
        return [self.value(name, leaf) for leaf in leaves(self.instructions[name].shape)]

    def owner(self, value: Value) -> Value:
        """Returns the value that stands for all values in the same memory as `value`."""
        while value in self.memory:
            value = self.memory[value]
        return value

    def _forwarded(self, name: str, index: Index) -> Value | None:
        instruction = self.instructions[name]
        opcode, operands = instruction.opcode, instruction.operands
        if opcode == "tuple":
            return (operands[index[0]], index[1:]) if index else None
        if opcode == "get-tuple-element":
            return operands[0], (instruction.index, *index)
        if opcode in ("bitcast", "opt-barrier", "add-dependency"):
            return operands[0], index
        if opcode == "all-reduce-done" and not is_paired(self.instructions[operands[0]]):
            return operands[0], index
        if opcode in _OTHER_DONES or opcode.endswith("-done"):
            return operands[0], (*_OTHER_DONES.get(opcode, (1,)), *index)
        if is_paired(instruction) and index[:1] == (0,):
            if index[1:]:
                return operands[index[1]], index[2:]
            return operands[0], ()
        if opcode == "copy-start" and index[:1] == (1,):
            return operands[0], index[1:]
        if opcode == "call":
            return self._root(instruction.called["to_apply"][0]), index
        return None

    def _root(self, computation: str) -> str:
        return self._module.computations[computation].root

    def _find_same(self) -> None:
        """Fills `_same`: parameters of called computations, and values that loops do not change."""
        for computation in reversed(self._module.computations.values()):
            for i in computation.instructions.values():
                for inside, operands in _callees(i):
                    pairs = zip(self._parameters(inside), operands, strict=True)
                    for parameter, operand in pairs:
                        for leaf in leaves(self.instructions[parameter].shape):
                            self._same[parameter, leaf] = operand, leaf
        # Computations come in the order of the text, in which an inner loop precedes the outer one.
        for computation in self._module.computations.values():
            for i in computation.instructions.values():
                if i.opcode == "while":
                    self._find_carried(i)

    def _find_carried(self, loop: Instruction) -> None:
        (condition,), (body,) = loop.called["condition"], loop.called["body"]
        parameters = [self._parameters(c)[0] for c in (condition, body)]
        for leaf in leaves(loop.shape):
            if self.value(self._root(body), leaf) == (parameters[1], leaf):
                for name in (loop.name, *parameters):
                    self._same[name, leaf] = loop.operands[0], leaf

    def _parameters(self, computation: str) -> list[str]:
        return self._module.computations[computation].parameters

    def _unite(self, a: Value, b: Value) -> None:
        a, b = self.owner(self.value(*a)), self.owner(self.value(*b))
        if a != b:
            self.memory[a] = b

    def _unite_all(self) -> None:
        for i in self.instructions.values():
            for leaf in leaves(i.shape):
                for operand, index in self._in_place(i, leaf):
                    self._unite((i.name, leaf), (operand, index))
            if i.opcode == "while":
                (condition,), (body,) = i.called["condition"], i.called["body"]
                places = [self._parameters(condition)[0], self._parameters(body)[0]]
                for leaf in leaves(i.shape):
                    for name in (*places, self._root(body), i.operands[0]):
                        self._unite((i.name, leaf), (name, leaf))
            elif i.opcode == "conditional":
                for branch in branches(i):
                    for leaf in leaves(i.shape):
                        self._unite((i.name, leaf), (self._root(branch), leaf))
            elif i.opcode == "async-start":
                for leaf in leaves(self.instructions[self._root(i.called["calls"][0])].shape):
                    self._unite((i.name, (1, *leaf)), (self._root(i.called["calls"][0]), leaf))
        entry = self._module.computations[self._module.entry]
        for result, parameter, index in self._module.donated:
            self._unite((entry.root, result), (entry.parameters[parameter], index))

    def _in_place(self, i: Instruction, index: Index) -> Iterator[Value]:
        """Yields the operands into whose memory `i` writes the part `index` of its result."""
        for result, operand, at in i.aliases:
            if result == index:
                yield i.operands[operand], at
        number = index[0] if index else 0
        if i.opcode in ("dynamic-update-slice", "set-dimension-size"):
            yield i.operands[0], ()
        elif i.opcode == "scatter" or (i.opcode == "all-reduce-start" and not is_paired(i)):
            yield i.operands[number], ()
        elif i.opcode == "ragged-all-to-all":
            yield i.operands[1], ()
        elif i.opcode == "fusion" or (i.opcode == "fusion-start" and number == 1):
            inside = i.called["calls"][0]
            part = index if i.opcode == "fusion" else index[1:]
            source, at = self._inside(self._root(inside), part)
            for operand, where in self._in_place(self.instructions[source], at):
                name, _ = self._inside(operand, where)
                if self.instructions[name].opcode == "parameter":
                    yield i.operands[self._parameters(inside).index(name)], ()

    def _inside(self, name: str, index: Index) -> Value:
        """As `value`, but stays in one computation: stops at its parameters."""
        while (following := self._forwarded(name, index)) is not None:
            name, index = following
        return name, index


def is_paired(i: Instruction) -> bool:
    """Whether an instruction is a start whose result is (operands, result, ...)."""
    if i.opcode == "all-reduce-start":  # In newer versions of XLA.
        return isinstance(i.shape[0], list)
    return i.opcode.endswith("-start") and i.opcode not in _OTHER_STARTS


def branches(conditional: Instruction) -> list[str]:
    """Returns the branches of a conditional. Operand 0 chooses; operand n + 1 is for branch n."""
    called = conditional.called
    if "branch_computations" in called:
        return called["branch_computations"]
    return [*called["true_computation"], *called["false_computation"]]


def _callees(i: Instruction) -> Iterator[tuple[str, list[str]]]:
    """Yields each computation that `i` calls with its operands, and these operands."""
    if i.opcode == "call":
        yield i.called["to_apply"][0], list(i.operands)
    elif i.opcode == "async-start":
        yield i.called["calls"][0], list(i.operands)
    elif i.opcode == "conditional":
        for branch, operand in zip(branches(i), i.operands[1:], strict=True):
            yield branch, [operand]


def grouped(values: Values, names: list[Value]) -> dict[Value, set[Value]]:
    """Returns a dict that maps the owner of each memory to those of `names` that share it."""
    found = collections.defaultdict(set)
    for value in names:
        found[values.owner(value)].add(value)
    return found
