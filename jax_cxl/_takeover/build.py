"""Builds the instructions that replace another instruction."""

from typing import NamedTuple

from jax_cxl._takeover.hlo import shape as shapes
from jax_cxl._takeover.hlo.module import Computation, Instruction
from jax_cxl._takeover.hlo.shape import Shape
from jax_cxl._takeover.hlo.wire import Message

_TYPED_FFI = 4


class Value(NamedTuple):
    """An array that an instruction computes."""

    id: int
    shape: Shape


class Builder:
    """Collects the instructions that replace one instruction."""

    def __init__(self, computation: Computation, old: Instruction) -> None:
        self._computation = computation
        self._old = old
        self._new: list[Instruction] = []

    def operands(self) -> list[Value]:
        """Returns the operands of the old instruction."""
        return [
            Value(number, self._computation.instruction(number).shapes[0])
            for number in self._old.operands
        ]

    def results(self) -> list[Shape]:
        """Returns the shapes of the old instruction's result, one for each element of a tuple."""
        return self._old.shapes

    def copy(self, value: Value, shape: Shape) -> Value:
        """Returns the value in the layout of `shape`."""
        if value.shape.minor_to_major == shape.minor_to_major:
            return value
        return self.emit("copy", shape, [value])

    def convert(self, value: Value, dtype: str) -> Value:
        """Returns the value as another element type."""
        if value.shape.dtype == dtype:
            return value
        return self.emit("convert", value.shape.of(dtype), [value])

    def bitcast(self, value: Value, shape: Shape) -> Value:
        """Returns the same memory as another shape of the same size."""
        return value if value.shape == shape else self.emit("bitcast", shape, [value])

    def concatenate(self, values: list[Value]) -> Value:
        """Returns values concatenated along the first dimension, the outermost in memory."""
        first = values[0].shape
        rows = sum(value.shape.dimensions[0] for value in values)
        joined = self.emit(
            "concatenate", first._replace(dimensions=(rows, *first.dimensions[1:])), values
        )
        self._new[-1].proto.set_integers(Instruction.DIMENSIONS, [0])
        return joined

    def row(self, value: Value, row: int) -> Value:
        """Returns one row of the first dimension, without this dimension."""
        sizes = value.shape.dimensions
        one = value.shape._replace(dimensions=(1, *sizes[1:]))
        sliced = self.emit("slice", one, [value])
        for start, limit in [(row, row + 1), *((0, size) for size in sizes[1:])]:
            part = Message().add(1, start).add(2, limit).add(3, 1)
            self._new[-1].proto.add(Instruction.SLICES, part)
        order = tuple(d - 1 for d in value.shape.minor_to_major if d != 0)
        return self.bitcast(sliced, one._replace(dimensions=sizes[1:], minor_to_major=order))

    def call(
        self,
        target: str,
        results: list[Shape],
        operands: list[Value],
        config: str,
        *,
        aliases: int | None = None,
        side_effect: bool = False,
    ) -> Value:
        """Appends a custom call, and returns its first result. The other results are not used.

        The first result takes the memory of the operand number `aliases`. XLA does not merge a call
        with a `side_effect` with an equal call.
        """
        first, *others = results
        whole = shapes.tuple_of(results) if others else first.encode()
        value = self._append("custom-call", whole, operands, first)
        proto = self._new[-1].proto
        proto.set(Instruction.TARGET, target).set(Instruction.BACKEND_CONFIG, config)
        proto.set(Instruction.API_VERSION, _TYPED_FFI).set(Instruction.CONSTRAIN_LAYOUT, 1)
        for operand in operands:
            proto.add(Instruction.OPERAND_SHAPES, operand.shape.encode())
        if aliases is not None:
            index = [0] if others else []
            alias = Message().set_integers(1, index).add(2, aliases)
            proto.add(Instruction.ALIASING, alias)
        before = self._old.proto.integers(Instruction.CONTROL_PREDECESSORS)
        proto.set_integers(Instruction.CONTROL_PREDECESSORS, before)
        if side_effect:
            proto.set(Instruction.HAS_SIDE_EFFECT, 1)
        if others:
            return self._append("get-tuple-element", first.encode(), [value], first)
        return value

    def emit(self, opcode: str, shape: Shape, operands: list[Value]) -> Value:
        return self._append(opcode, shape.encode(), operands, shape)

    def finish(self, results: list[Value]) -> None:
        """Replaces the old instruction with the new ones, whose result is `results`.

        If the old instruction returned a tuple, the new ones return a tuple of `results`.
        """
        if self._old.is_tuple:
            parts = [result.shape for result in results]
            self._append("tuple", shapes.tuple_of(parts), results, parts[0])
        self._replace()

    def _replace(self) -> None:
        """Replaces the old instruction with the new ones. The last new one gets the old id."""
        last = self._new[-1].proto
        last.set(Instruction.ID, self._old.id).set(Instruction.NAME, self._old.name)
        self._computation.replace(self._old, self._new)

    def _append(self, opcode: str, whole: Message, operands: list[Value], shape: Shape) -> Value:
        """Appends an instruction whose result has the ShapeProto `whole`."""
        number = self._computation.new_id()
        proto = Message().set(Instruction.NAME, f"{self._old.name}.{opcode}.{len(self._new)}")
        proto.set(Instruction.OPCODE, opcode).set(Instruction.SHAPE, whole)
        metadata = self._old.proto.blob(Instruction.METADATA)
        if metadata:
            proto.set(Instruction.METADATA, metadata)
        proto.set(Instruction.ID, number)
        proto.set_integers(Instruction.OPERANDS, [operand.id for operand in operands])
        self._new.append(Instruction(proto))
        return Value(number, shape)
