"""Finds the collectives of a module, including those that XLA has put into separate computations.

If a collective runs beside other work, XLA may wrap it into an `async-start`. On GPUs of one NVLink
domain, XLA turns a small collective into a fusion, whose kernel reads the memory of the other GPUs.
"""

from typing import NamedTuple

from jax_cxl._lowering.contract import Op
from jax_cxl._takeover.hlo.module import Computation, Instruction, Module

OPS = {
    "all-reduce": Op.ALL_REDUCE,
    "all-gather": Op.ALL_GATHER,
    "reduce-scatter": Op.REDUCE_SCATTER,
    "all-to-all": Op.ALL_TO_ALL,
    "ragged-all-to-all": Op.RAGGED_ALL_TO_ALL,
    "collective-permute": Op.PERMUTE,
    "collective-broadcast": Op.BROADCAST,
}
# A module that contains none of these texts has no collectives. If a text occurs elsewhere, for
# instance in a name, it costs a closer look and nothing else.
TEXTS = tuple(opcode.encode() for opcode in OPS)


class Found(NamedTuple):
    """A collective, which the instruction `outer` executes in the sequence of `computation`.

    Attributes:
      opcode: which collective, without "-start".
      outer: `instruction` itself, or the fusion or the start that wraps it.
      inside: ids of the computations that `outer` wraps around it, the outermost first.
      alone: whether nothing else is wrapped with it.
    """

    opcode: str
    instruction: Instruction
    computation: Computation
    outer: Instruction
    inside: tuple[int, ...] = ()
    alone: bool = True

    @property
    def starts(self) -> bool:
        """Whether its result is complete only after a matching "-done"."""
        return self.outer.opcode.endswith("-start")


def collectives(module: Module) -> list[Found]:
    """Returns the collectives of a module in order, one for each instruction that executes some."""
    found: dict[tuple[int, int], Found] = {}
    for computation, instruction in module.with_any(TEXTS):
        if instruction.opcode.removesuffix("-start") in OPS:
            each = _outermost(module, computation, instruction)
            found.setdefault(module.place(each.computation, each.outer), each)
    return [each for _, each in sorted(found.items())]


def _outermost(module: Module, computation: Computation, instruction: Instruction) -> Found:
    opcode = instruction.opcode.removesuffix("-start")
    outer, alone = instruction, True
    inside: list[int] = []
    while (wrapper := module.wrappers.get(computation.id)) is not None:
        alone = alone and _is_alone(computation, outer)
        inside.insert(0, computation.id)
        computation, outer = wrapper
    alone = alone and not computation.is_asynchronous
    return Found(opcode, instruction, computation, outer, tuple(inside), alone)


def _is_alone(computation: Computation, instruction: Instruction) -> bool:
    """Whether a computation only passes its arguments to an instruction and returns the result."""
    operands = [computation.instruction(number) for number in instruction.operands]
    numbers = [operand.parameter for operand in operands if operand.opcode == "parameter"]
    return computation.root.id == instruction.id and numbers == list(range(len(operands)))
