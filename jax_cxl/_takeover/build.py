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
        """Returns values concatenated along the first dimension, which is their outermost."""
        first = values[0].shape
        rows = sum(value.shape.dimensions[0] for value in values)
        shape = first._replace(dimensions=(rows, *first.dimensions[1:]))
        return self.emit("concatenate", shape, values, dimensions=[0])

    def row(self, value: Value, row: int) -> Value:
        """Returns one row of the first dimension, without this dimension."""
        sizes = value.shape.dimensions
        one = value.shape._replace(dimensions=(1, *sizes[1:]))
        sliced = self.emit("slice", one, [value])
        proto = self._new[-1].proto
        for start, limit in [(row, row + 1), *((0, size) for size in sizes[1:])]:
            part = Message().add(1, start).add(2, limit).add(3, 1)
            proto.add(Instruction.SLICES, part)
        order = tuple(d - 1 for d in value.shape.minor_to_major if d != 0)
        inner = one._replace(dimensions=sizes[1:], minor_to_major=order)
        return self.bitcast(sliced, inner)

    def call(
        self, target: str, shape: Shape, operands: list[Value], config: str, aliases: int | None
    ) -> Value:
        """Returns the result of a custom call, which may share the memory of an operand."""
        return self._call(target, shape.encode(), shape, operands, config, aliases)

    def call_with_scratch(
        self,
        target: str,
        shape: Shape,
        operands: list[Value],
        config: str,
        aliases: int,
        scratch_bytes: int,
    ) -> Value:
        """Adds a call with a second result, which no instruction reads."""
        scratch = Shape("uint8", (scratch_bytes,), (0,))
        both = shapes.tuple_of([shape, scratch])
        pair = self._call(target, both, shape, operands, config, None)
        alias = Message().set_integers(1, [0]).add(2, aliases)
        self._new[-1].proto.add(Instruction.ALIASING, alias)
        return self._emit("get-tuple-element", shape.encode(), [pair], shape, None)

    def _call(
        self,
        target: str,
        shape_proto: Message,
        shape: Shape,
        operands: list[Value],
        config: str,
        aliases: int | None,
    ) -> Value:
        value = self._emit("custom-call", shape_proto, operands, shape, None)
        proto = self._new[-1].proto
        proto.set(Instruction.TARGET, target).set(Instruction.BACKEND_CONFIG, config)
        proto.set(Instruction.API_VERSION, _TYPED_FFI).set(Instruction.CONSTRAIN_LAYOUT, 1)
        for operand in operands:
            proto.add(Instruction.OPERAND_SHAPES, operand.shape.encode())
        if aliases is not None:
            proto.add(Instruction.ALIASING, Message().add(2, aliases))
        before = self._old.proto.integers(Instruction.CONTROL_PREDECESSORS)
        proto.set_integers(Instruction.CONTROL_PREDECESSORS, before)
        return value

    def emit(
        self,
        opcode: str,
        shape: Shape,
        operands: list[Value],
        dimensions: "list[int] | None" = None,
    ) -> Value:
        """Appends an instruction."""
        return self._emit(opcode, shape.encode(), operands, shape, dimensions)

    def finish(self, results: list[Value]) -> None:
        """Replaces the old instruction by the new ones. The values are its result."""
        if self._old.is_tuple:
            parts = [result.shape for result in results]
            self._emit("tuple", shapes.tuple_of(parts), results, parts[0], None)
        self._put()

    def _put(self) -> None:
        """Replaces the old instruction by the new ones. The last of them gets its id."""
        last = self._new[-1].proto
        last.set(Instruction.ID, self._old.id).set(Instruction.NAME, self._old.name)
        self._computation.replace(self._old, self._new)

    def _emit(self, opcode, shape_proto, operands, shape, dimensions) -> Value:
        number = self._computation.new_id()
        proto = Message().set(Instruction.NAME, f"{self._old.name}.{opcode}.{len(self._new)}")
        proto.set(Instruction.OPCODE, opcode).set(Instruction.SHAPE, shape_proto)
        metadata = self._old.proto.blob(Instruction.METADATA)
        if metadata:
            proto.set(Instruction.METADATA, metadata)
        if dimensions is not None:
            proto.set_integers(Instruction.DIMENSIONS, dimensions)
        proto.set(Instruction.ID, number)
        proto.set_integers(Instruction.OPERANDS, [operand.id for operand in operands])
        self._new.append(Instruction(proto))
        return Value(number, shape)
