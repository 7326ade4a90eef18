"""Shapes of arrays: element types, dimensions, layouts."""

import math
from typing import NamedTuple

from jax_cxl._takeover.hlo.wire import Message

# ShapeProto and LayoutProto (xla/xla_data.proto).
ELEMENT_TYPE, _DIMENSIONS, _DYNAMIC, _TUPLE_SHAPES, _LAYOUT = 2, 3, 6, 4, 5
_MINOR_TO_MAJOR, _MEMORY_SPACE, _TAIL_ALIGNMENT = 1, 8, 16
# Fields of a layout that make it irregular: tiles, packing, types of indices and pointers, memory
# space, splits.
_IRREGULAR = (6, _MEMORY_SPACE, 9, 10, 11, 12, 15, 17)
TUPLE = 13

# PrimitiveType -> the dtype's name in NumPy or ml_dtypes.
DTYPES = {
    1: "bool",
    2: "int8",
    3: "int16",
    4: "int32",
    5: "int64",
    6: "uint8",
    7: "uint16",
    8: "uint32",
    9: "uint64",
    10: "float16",
    11: "float32",
    12: "float64",
    15: "complex64",
    16: "bfloat16",
    18: "complex128",
    19: "float8_e5m2",
    20: "float8_e4m3fn",
    21: "int4",
    22: "uint4",
    23: "float8_e4m3b11fnuz",
    24: "float8_e5m2fnuz",
    25: "float8_e4m3fnuz",
    26: "int2",
    27: "uint2",
    28: "float8_e4m3",
    29: "float8_e3m4",
    32: "float4_e2m1fn",
    33: "float8_e8m0fnu",
}
_NUMBERS = {name: number for number, name in DTYPES.items()}


class Shape(NamedTuple):
    """Shape of an array in memory. The first dimension of `minor_to_major` is the fastest.

    The dtype is empty for a type that is not known here, such as a token. An array is regular if it
    is dense and of static size, in the usual memory.
    """

    dtype: str
    dimensions: tuple[int, ...]
    minor_to_major: tuple[int, ...]
    regular: bool = True

    @property
    def size(self) -> int:
        return math.prod(self.dimensions)

    def with_outermost(self, dimension: int) -> "Shape":
        """The same shape in the layout with this dimension outermost."""
        others = tuple(d for d in self.minor_to_major if d != dimension)
        return self._replace(minor_to_major=(*others, dimension))

    def stacked(self, n: int) -> "Shape":
        """The shape of `n` such arrays, stacked along a new first dimension."""
        return self._replace(
            dimensions=(n, *self.dimensions),
            minor_to_major=(*(d + 1 for d in self.minor_to_major), 0),
        )

    def of(self, dtype: str) -> "Shape":
        """The same shape with another element type."""
        return self._replace(dtype=dtype)

    def encode(self) -> Message:
        """Returns the shape as a ShapeProto."""
        layout = Message().set_integers(_MINOR_TO_MAJOR, self.minor_to_major)
        layout.set(_TAIL_ALIGNMENT, 1)
        out = Message().set(ELEMENT_TYPE, _NUMBERS[self.dtype])
        out.set_integers(_DIMENSIONS, self.dimensions)
        if self.dimensions:
            out.set_integers(_DYNAMIC, [0] * len(self.dimensions))
        return out.set(_LAYOUT, layout)


def decode(proto: Message) -> list[Shape]:
    """Returns the shapes in a ShapeProto: one per element of a tuple, otherwise a single shape."""
    if proto.get(ELEMENT_TYPE) == TUPLE:
        return [_array(part) for part in proto.messages(_TUPLE_SHAPES)]
    return [_array(proto)]


def tuple_of(shapes: "list[Shape]") -> Message:
    """Returns the ShapeProto of a tuple of arrays."""
    out = Message().set(ELEMENT_TYPE, TUPLE)
    for shape in shapes:
        out.add(_TUPLE_SHAPES, shape.encode())
    return out


def without_memory_space(proto: Message) -> Message:
    """Returns a ShapeProto with all of its arrays in the memory of the device."""
    out = Message()
    for field, kind, value in proto.items():
        if field == _TUPLE_SHAPES and isinstance(value, bytes):
            out.add(field, without_memory_space(Message(value)))
        elif field == _LAYOUT and isinstance(value, bytes):
            out.add(field, Message(value).clear(_MEMORY_SPACE))
        else:
            out.append(field, kind, value)
    return out


def _array(proto: Message) -> Shape:
    layout = Message(proto.blob(_LAYOUT))
    dimensions = tuple(proto.integers(_DIMENSIONS))
    order = tuple(layout.integers(_MINOR_TO_MAJOR))
    regular = (
        not any(layout.has(number) for number in _IRREGULAR)
        and len(order) == len(dimensions)
        and not any(proto.integers(_DYNAMIC))
        and proto.get(ELEMENT_TYPE) in DTYPES
    )
    return Shape(DTYPES.get(proto.get(ELEMENT_TYPE), ""), dimensions, order, regular)
