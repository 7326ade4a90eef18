"""Lets operands of collectives bypass optimization barriers.

A barrier takes a tuple and returns the same arrays. An instruction that uses one of them waits for
all of them. `jax.checkpoint` puts the parameters of a layer into one tuple with its activations. So
the second gather of a parameter waits for the activations, although the parameter exists earlier.
"""

from jax_cxl._takeover.hlo.module import Computation, Instruction
from jax_cxl._takeover.schedule import memory

_THROUGH = {"fusion", "convert", "copy", "transpose", "bitcast", "slice", "get-tuple-element"}


def bypass(computation: Computation, start: Instruction) -> None:
    """Makes a start, and the instructions that prepare its operands, read the arrays directly."""
    seen, stack = {start.id}, [start]
    while stack:
        instruction = stack.pop()
        operands = [_element(computation, number) for number in instruction.operands]
        if operands != instruction.operands:
            instruction.set_operands(operands)
            computation.touch(instruction)
        for number in operands:
            before = computation.instruction(number)
            if before.opcode in _THROUGH and number not in seen:
                seen.add(number)
                stack.append(before)


def _element(computation: Computation, number: int) -> int:
    """Returns the array that an instruction takes from a tuple; else the instruction itself."""
    while (part := memory.element(computation, computation.instruction(number))) is not None:
        number = part
    return number
