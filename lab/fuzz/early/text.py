"""Reads the text of a scheduled module."""

import dataclasses
import re
from typing import Any

# A shape: an array's dtype and dimensions as text, or a list of shapes.
Shape = Any
# Where an array is in nested tuples: the index at each level.
Index = tuple[int, ...]

_LINE = re.compile(r"\s+(ROOT )?%?([\w.-]+) = ")
_HEAD = re.compile(r"(ENTRY )?%?([\w.-]+) (\(.*\) -> .*)?\{$")
_ARRAY = re.compile(r"(\w+)\[([^\]]*)\](\{[^}]*\})?")
_NAMES = re.compile(r"%([\w.-]+)")
_CALLED = re.compile(
    r"(calls|to_apply|body|condition|branch_computations|(?:true|false)_computation)="
    r"(\{[^}]*\}|%[\w.-]+)"
)


@dataclasses.dataclass(frozen=True)
class Instruction:
    """An instruction.

    Attributes:
      name: its name, unique in the module.
      opcode: what it does.
      shape: the shape of its result.
      operands: names of its operands.
      attributes: what follows the operands.
    """

    name: str
    opcode: str
    shape: Shape
    operands: tuple[str, ...]
    attributes: str

    @property
    def control(self) -> list[str]:
        """The names of its control predecessors: they must run first, but are not operands."""
        found = re.search(r"control-predecessors=\{([^}]*)\}", self.attributes)
        return _NAMES.findall(found[1]) if found else []

    @property
    def target(self) -> str:
        """The target of a custom call."""
        found = re.search(r'custom_call_target="([^"]*)"', self.attributes)
        return found[1] if found else ""

    @property
    def index(self) -> int:
        """The tuple element that a get-tuple-element takes."""
        found = re.search(r"\bindex=(\d+)", self.attributes)
        assert found
        return int(found[1])

    @property
    def called(self) -> dict[str, list[str]]:
        """The names of the computations that it executes, by attribute, such as `body`."""
        return {key: _NAMES.findall(names) for key, names in _CALLED.findall(self.attributes)}

    @property
    def aliases(self) -> list[tuple[Index, int, Index]]:
        """Parts of the result that share memory with a part of an operand.

        Each is (index in the result, number of the operand, index in the operand).
        """
        found = re.search(r"output_to_operand_aliasing=\{(.*?\))\}", self.attributes)
        pairs = re.findall(r"\{([\d, ]*)\}: \((\d+), \{([\d, ]*)\}", found[1]) if found else []
        return [(_index(a), int(b), _index(c)) for a, b, c in pairs]


@dataclasses.dataclass(frozen=True)
class Computation:
    """A computation.

    Attributes:
      name: its name.
      instructions: in the order of execution, by name.
      root: the name of the instruction that computes the computation's result.
    """

    name: str
    instructions: dict[str, Instruction]
    root: str

    @property
    def parameters(self) -> list[str]:
        """The names of its parameters, in their order."""
        found = [i for i in self.instructions.values() if i.opcode == "parameter"]
        return [i.name for i in sorted(found, key=lambda i: int(i.attributes))]


@dataclasses.dataclass(frozen=True)
class Module:
    """A module.

    Attributes:
      computations: by name.
      entry: the name of the computation that runs first.
      donated: parts of the result that share memory with a donated parameter. Each is (index in the
        result, number of the parameter, index in the parameter).
    """

    computations: dict[str, Computation]
    entry: str
    donated: list[tuple[Index, int, Index]]


def module(text: str) -> Module:
    """Reads the text of a module."""
    computations, entry = {}, ""
    name, body, root = "", {}, ""
    head, _, _ = text.partition("\n")
    for line in text.splitlines()[1:]:
        if found := _LINE.match(line):
            instruction = _instruction(found[2], line[found.end() :])
            body[instruction.name] = instruction
            root = instruction.name if found[1] else root
        elif found := _HEAD.match(line):
            name, body, root = found[2], {}, ""
            entry = name if found[1] else entry
        elif line.startswith("}"):
            computations[name] = Computation(name, body, root)
    alias = re.search(r"input_output_alias=\{(.*?\))\s*\}", head)
    pairs = re.findall(r"\{([\d, ]*)\}: \((\d+), \{([\d, ]*)\}", alias[1]) if alias else []
    return Module(computations, entry, [(_index(a), int(b), _index(c)) for a, b, c in pairs])


def instruction(line: str) -> Instruction | None:
    """Returns the instruction in a line of a module's text, or None if the line has none."""
    found = _LINE.match(line)
    return _instruction(found[2], line[found.end() :]) if found else None


def leaves(shape: Shape, at: Index = ()) -> list[Index]:
    """Returns the indices of all arrays in a shape, each index preceded by `at`."""
    if isinstance(shape, list):
        return [leaf for i, part in enumerate(shape) for leaf in leaves(part, (*at, i))]
    return [at]


def num_bytes(shape: Shape, at: Index) -> int:
    """Returns the bytes of the array at the index `at` of a shape."""
    for i in at:
        shape = shape[i]
    dtype, dimensions = shape
    bits = re.findall(r"\d+", dtype)
    count = 1
    for size in dimensions.split(","):
        count *= int(size.removeprefix("<=")) if size else 1
    return count * max(int(bits[0]) if bits else 8, 8) // 8 * (dtype != "token")


def _index(text: str) -> Index:
    return tuple(int(part) for part in text.split(",") if part.strip())


def _instruction(name: str, rest: str) -> Instruction:
    rest = re.sub(r"/\*.*?\*/", "", rest)
    shape, rest = _shape(rest)
    opcode, _, rest = rest.strip().partition("(")
    depth, end = 1, 0
    while depth:
        depth += {"(": 1, ")": -1}.get(rest[end], 0)
        end += 1
    inside, attributes = rest[: end - 1], rest[end:]
    if opcode == "parameter":
        return Instruction(name, opcode, shape, (), inside)
    operands = () if opcode == "constant" else tuple(_NAMES.findall(inside))
    return Instruction(name, opcode, shape, operands, attributes.lstrip(", "))


def _shape(text: str) -> tuple[Shape, str]:
    """Reads the shape at the beginning of a text. Returns it, and the rest of the text."""
    text = text.lstrip(", ")
    if text.startswith("("):
        parts, text = [], text[1:]
        while not text.startswith(")"):
            part, text = _shape(text)
            parts.append(part)
        return parts, text[1:]
    found = _ARRAY.match(text)
    assert found, text[:80]
    return (found[1], found[2]), text[found.end() :]
