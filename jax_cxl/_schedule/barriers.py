"""Lets operands of collectives bypass optimization barriers.

A barrier is a tuple and the elements of that tuple. So the gather of a parameter, which
`jax.checkpoint` repeats, waits for all activations in the tuple. The elements are the same arrays.
"""

from jax_cxl._hlo.module import Computation, Instruction
from jax_cxl._schedule import memory

_THROUGH = {"fusion", "convert", "copy", "transpose", "bitcast", "slice", "get-tuple-element"}


def bypass(computation: Computation, start: Instruction) -> None:
    """Makes a start, and the instructions that prepare its operands, read the elements directly."""
    seen, stack = {start.id}, [start]
    while stack:
        instruction = stack.pop()
        operands = [_element(computation, number) for number in instruction.operands]
        if operands != instruction.operands:
            instruction.proto.set_integers(Instruction.OPERANDS, operands)
            computation.touch(instruction)
        for number in operands:
            before = computation.instruction(number)
            if before.opcode in _THROUGH and number not in seen:
                seen.add(number)
                stack.append(before)


def _element(computation: Computation, number: int) -> int:
    """Returns the array that a part of a tuple is."""
    while (part := memory.element(computation, computation.instruction(number))) is not None:
        number = part
    return number
