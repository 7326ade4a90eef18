"""Estimates how long instructions take on a GPU, from their shapes alone.

Only the ratios of the estimates matter, and they may be rough. The estimates must not be measured
on the machine that compiles the program, because all ranks have to reach the same order.
"""

import functools
import math
import re

from jax_cxl._takeover.hlo.module import Computation, Instruction, Module
from jax_cxl._takeover.hlo.shape import Shape

# Measured on H100s. _FLOPS: floating point operations a second in matrix products, by the bytes of
# an element. _BYTES: bytes a second that a kernel reads and writes in the GPU's memory. _LAUNCH:
# seconds to launch a kernel.
_FLOPS = {4: 3.1e14, 2: 6.5e14, 1: 8e14, 8: 5e13, 16: 2e13}
_BYTES = 2.8e12
_LAUNCH = 4e-6
# The pool. _CALL: seconds that each call takes. _PIPELINE: the most seconds until the pipeline of a
# call is full. _POOL_BYTES: bytes a second that a rank writes.
_CALL = 30e-6
_PIPELINE = 50e-6
_POOL_BYTES = 30e9
# Instructions that execute other computations.
CALLERS = ("while", "conditional", "call")
_WITHOUT_KERNEL = {
    *("parameter", "constant", "bitcast", "get-tuple-element", "tuple", "after-all", "opt-barrier"),
    *("partition-id", "replica-id"),
}
_CONTRACTED = re.compile(r'"lhs_contracting_dimensions":\[([^\]]*)\]')
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_DOT_NUMBERS = 30


def size(shape: Shape) -> int:
    """Returns the bytes of an array, 0 if its dtype is not known."""
    if not shape.dtype:
        return 0
    bits = 8 if shape.dtype == "bool" else int(re.findall(r"(?<=[a-z])\d+", shape.dtype)[0])
    return shape.size * max(bits, 8) // 8


def collective(opcode: str, operands: list[int], results: list[int], ranks: int) -> float:
    """Returns the seconds of a collective of the pool, from the bytes of a rank's arrays."""
    others = max(ranks - 1, 1)
    if opcode == "all-gather":
        moved = [part * others for part in operands]
    elif opcode == "reduce-scatter":
        moved = [part * others for part in results]
    elif opcode == "all-reduce":
        moved = [part * 2 * others // max(ranks, 2) for part in operands]
    else:
        moved = operands
    # The pool executes a call for each array.
    return sum(_CALL + min(_PIPELINE, part / _POOL_BYTES) + part / _POOL_BYTES for part in moved)


class Costs:
    """Estimates for the instructions of a module."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._whole = functools.cache(self._seconds_of_computation)
        self._in_fusion = functools.cache(self._products_of_fusion)

    def seconds(self, computation: Computation, instruction: Instruction) -> float:
        opcode = instruction.opcode
        if opcode in _WITHOUT_KERNEL or opcode.endswith(("-start", "-done")):
            return 0.0
        if opcode in CALLERS:
            called = instruction.proto.integers(Instruction.CALLED)
            parts = [self._whole(number) for number in called]
            if opcode == "conditional":
                return max(parts, default=0.0)
            trips = _TRIPS.search(_config(instruction)) if opcode == "while" else None
            return sum(parts) * (int(trips[1]) if trips else 1)
        arrays = instruction.shapes + [
            shape
            for operand in instruction.operands
            for shape in computation.instruction(operand).shapes
        ]
        products = self.products(computation, instruction)
        return _LAUNCH + max(products, sum(map(size, arrays)) / _BYTES)

    def products(self, computation: Computation, instruction: Instruction) -> float:
        """Returns how long a matrix product takes, or for a fusion, the products in it.

        Returns 0 for all other instructions.
        """
        if instruction.opcode != "fusion":
            return _dot(computation, instruction)
        return sum(map(self._in_fusion, instruction.proto.integers(Instruction.CALLED)))

    def _seconds_of_computation(self, number: int) -> float:
        computation = self._module.computation(number)
        return sum(self.seconds(computation, each) for each in computation.instructions())

    def _products_of_fusion(self, number: int) -> float:
        texts = b"dot", b"fusion"
        if not self._module.contains_any(number, texts):
            return 0.0
        computation = self._module.computation(number)
        return sum(self.products(computation, each) for each in computation.with_any(texts))


def _dot(computation: Computation, instruction: Instruction) -> float:
    """Returns how long a matrix product takes, 0 for another instruction."""
    if instruction.opcode == "dot":
        numbers = instruction.proto.messages(_DOT_NUMBERS)
        contracted = [d for part in numbers for d in part.integers(1)]
    elif instruction.opcode == "custom-call":
        found = _CONTRACTED.search(_config(instruction))
        if found is None:
            return 0.0
        contracted = [int(d) for d in re.findall(r"\d+", found[1])]
    else:
        return 0.0
    left = computation.instruction(instruction.operands[0]).shapes[0]
    length = math.prod(left.dimensions[d] for d in contracted)
    rate = _FLOPS.get(size(left) // max(left.size, 1), min(_FLOPS.values()))
    return 2.0 * instruction.shapes[0].size * length / rate


def _config(instruction: Instruction) -> str:
    return instruction.proto.blob(Instruction.BACKEND_CONFIG).decode(errors="replace")
