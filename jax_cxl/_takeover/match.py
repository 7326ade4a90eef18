"""Translates a collective instruction of XLA into a collective of the pool."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from jax_cxl._lowering.contract import Op, ReduceOp
from jax_cxl._takeover.find import OPS, Found
from jax_cxl._takeover.hlo.groups import Groups, decode
from jax_cxl._takeover.hlo.module import Instruction, Module

_REDUCTIONS = {
    "add": ReduceOp.SUM,
    "multiply": ReduceOp.PROD,
    "minimum": ReduceOp.MIN,
    "maximum": ReduceOp.MAX,
    "and": ReduceOp.AND,
    "or": ReduceOp.OR,
}
# For bools, XLA's add and multiply are `or` and `and`.
_LOGICAL = {
    "add": ReduceOp.OR,
    "or": ReduceOp.OR,
    "maximum": ReduceOp.OR,
    "multiply": ReduceOp.AND,
    "and": ReduceOp.AND,
    "minimum": ReduceOp.AND,
}
# If one of these collectives has a channel, its groups consist of partitions. If a collective of
# another kind has a channel, its groups consist of replicas, each with all of its partitions.
_BETWEEN_PARTITIONS = {
    *("all-to-all", "collective-broadcast", "collective-permute", "ragged-all-to-all")
}


class NotTakenError(Exception):
    """XLA executes the instruction itself, on all ranks. The text has the reason."""


class Collective(NamedTuple):
    """A collective of XLA as the `op` of the pool that does the same.

    Attributes:
      groups: the devices of each group, in the order of ranks in the group.
      dimension: along which blocks are gathered, scattered or exchanged.
      sources: for a permutation, from which position in the group each device receives; -1: from
        none.
    """

    op: Op
    groups: Groups
    reduce_op: ReduceOp = ReduceOp.SUM
    dimension: int | None = None
    sources: tuple[int, ...] = ()


def devices(module: Module, found: Found) -> Groups:
    """Returns the groups as device ids, whichever ids the instruction uses.

    For a permutation, returns the source and target of each of its pairs. Raises NotTakenError if
    the module does not name its devices.
    """
    proto = found.instruction.proto
    assignment = _assignment(module)
    if found.opcode == "collective-permute":
        pairs = proto.messages(Instruction.PAIRS)
        groups = [[pair.get(1), pair.get(2)] for pair in pairs] or [[]]
    else:
        groups = decode(proto)
    # The groups are indices into each of these arrays of devices.
    if proto.get(Instruction.GLOBAL_IDS):
        arrays: Iterable[np.ndarray] = [assignment.reshape(-1)]
    elif proto.get(Instruction.CHANNEL_ID) <= 0:
        arrays = assignment.T  # replicas, in each partition
    elif found.opcode in _BETWEEN_PARTITIONS:
        arrays = assignment
    else:
        arrays = [assignment]  # replicas, with all their partitions
    return [
        array[group].reshape(-1).tolist()
        for array in arrays
        for group in groups or [list(range(len(array)))]
    ]


def collective(module: Module, found: Found) -> Collective:
    """Returns what a collective does, or raises NotTakenError if no pool does the same."""
    op, proto = OPS[found.opcode], found.instruction.proto
    if not found.alone:
        raise NotTakenError("XLA has wrapped it together with other operations")
    groups, everyone = devices(module, found), _assignment(module).reshape(-1).tolist()
    if op is Op.PERMUTE:
        if proto.has(Instruction.DYNAMIC_SLICE_SIZES):
            raise NotTakenError("it permutes parts of arrays, not whole arrays")
        source_of = {target: everyone.index(source) for source, target in groups}
        sources = tuple(source_of.get(device, -1) for device in everyone)
        return Collective(op, [everyone], sources=sources)
    if len({len(group) for group in groups}) > 1:
        raise NotTakenError(f"its groups have different sizes: {groups}")
    if {device for group in groups for device in group} != set(everyone):
        raise NotTakenError(f"its groups {groups} leave out devices of the program")
    dimensions = proto.integers(Instruction.DIMENSIONS)
    return Collective(
        op,
        groups,
        _reduction(module, found.instruction) if op.reduces else ReduceOp.SUM,
        dimensions[0] if dimensions else None,
    )


def _assignment(module: Module) -> np.ndarray:
    if module.device_assignment is None:
        raise NotTakenError("XLA has not assigned the program to devices")
    return module.device_assignment


def _reduction(module: Module, instruction: Instruction) -> ReduceOp:
    (called,) = instruction.proto.integers(Instruction.CALLED)
    computation = module.computation(called)
    root = computation.root
    kinds = _LOGICAL if root.shapes[0].dtype == "bool" else _REDUCTIONS
    operands = [computation.instruction(number).opcode for number in {*root.operands}]
    if root.opcode not in kinds or operands != ["parameter", "parameter"]:
        raise NotTakenError(f"it reduces by {root.opcode}, for which the pool has no reduction")
    return kinds[root.opcode]
