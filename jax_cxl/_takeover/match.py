"""Translates a collective instruction of XLA into a collective of the pool."""

from typing import NamedTuple

from jax_cxl._lowering.contract import Op, ReduceOp
from jax_cxl._takeover.find import OPS, Found
from jax_cxl._takeover.hlo.groups import DeviceAssignment, Groups, decode
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


class NotTakenError(Exception):
    """XLA executes the instruction itself, on all ranks. The text has the reason."""


class Collective(NamedTuple):
    """A collective of XLA.

    Attributes:
      op: the collective of the pool that does the same.
      groups: the devices that take part, a list for each group, in the order of ranks in the group.
      reduce_op: how values are combined, if the collective reduces.
      dimension: along which blocks are gathered, scattered or exchanged; None if it has none.
      sources: for a permutation, from which position in the group each device receives, or -1.
    """

    op: Op
    groups: Groups
    reduce_op: ReduceOp = ReduceOp.SUM
    dimension: int | None = None
    sources: tuple[int, ...] = ()


def devices(module: Module, found: Found) -> Groups:
    """Returns the groups of devices that communicate, in any of XLA's modes.

    Raises:
      NotTakenError: the module does not name its devices.
    """
    if found.opcode == "collective-permute":
        return _pairs(_assignment(module), found.instruction)
    return _devices(_assignment(module), found)


def collective(module: Module, found: Found) -> Collective:
    """Returns what a collective instruction does.

    Raises:
      NotTakenError: the pool has no collective that does the same.
    """
    assignment = _assignment(module)
    op, instruction = OPS[found.opcode], found.instruction
    if not found.alone:
        raise NotTakenError("XLA has wrapped it together with other operations")
    if op is Op.PERMUTE:
        return _permutation(assignment, instruction)
    groups = _devices(assignment, found)
    if len({len(group) for group in groups}) > 1:
        raise NotTakenError(f"its groups have different sizes: {groups}")
    if {device for group in groups for device in group} != set(assignment.flattened.tolist()):
        raise NotTakenError(f"its groups {groups} leave out devices of the program")
    dimensions = instruction.proto.integers(Instruction.DIMENSIONS)
    return Collective(
        op,
        groups,
        _reduction(module, instruction) if op.reduces else ReduceOp(0),
        dimensions[0] if dimensions else None,
    )


def _assignment(module: Module) -> DeviceAssignment:
    assignment = module.device_assignment
    if assignment is None:
        raise NotTakenError("the module does not assign its parts to devices")
    return assignment


def _devices(assignment: DeviceAssignment, found: Found) -> Groups:
    """Returns the groups as device ids, whichever ids the instruction itself uses."""
    instruction = found.instruction
    groups = decode(instruction.proto)
    replicas, partitions = assignment.devices.shape
    channel = instruction.proto.get(Instruction.CHANNEL_ID) > 0
    if instruction.proto.get(Instruction.GLOBAL_IDS):
        return assignment.by_position(groups or [list(range(replicas * partitions))])
    if not channel:
        return assignment.cross_replica(groups or [list(range(replicas))])
    if found.opcode in ("all-to-all", "collective-broadcast", "ragged-all-to-all"):
        return assignment.cross_partition(groups or [list(range(partitions))])
    return assignment.cross_both(groups or [list(range(replicas))])


def _pairs(assignment: DeviceAssignment, instruction: Instruction) -> Groups:
    """Returns source and target of each pair of a permutation."""
    pairs = [[pair.get(1), pair.get(2)] for pair in instruction.proto.messages(Instruction.PAIRS)]
    if instruction.proto.get(Instruction.CHANNEL_ID) > 0:
        return assignment.cross_partition(pairs)
    return assignment.cross_replica(pairs)


def _permutation(assignment: DeviceAssignment, instruction: Instruction) -> Collective:
    """Returns a permutation in one group of all devices. Some devices may take no part in it."""
    if instruction.proto.integers(Instruction.DYNAMIC_SLICE_SIZES):
        raise NotTakenError("it permutes parts of arrays, not whole arrays")
    devices = assignment.flattened.tolist()
    position = {device: i for i, device in enumerate(devices)}
    sources = [-1] * len(devices)
    for source, target in _pairs(assignment, instruction):
        sources[position[target]] = position[source]
    return Collective(Op.PERMUTE, [devices], sources=tuple(sources))


def _reduction(module: Module, instruction: Instruction) -> ReduceOp:
    (called,) = instruction.proto.integers(Instruction.CALLED)
    computation = module.computation(called)
    root = computation.root
    kinds = _LOGICAL if root.shapes[0].dtype == "bool" else _REDUCTIONS
    operands = [computation.instruction(number).opcode for number in {*root.operands}]
    if root.opcode not in kinds or operands != ["parameter", "parameter"]:
        raise NotTakenError(f"it reduces by {root.opcode}, for which the pool has no reduction")
    return kinds[root.opcode]
