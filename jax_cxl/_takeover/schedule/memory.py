"""Which instructions of a scheduled computation may run earlier than in XLA's order.

A module shows how its instructions depend on each other. It does not show which results share
memory. In XLA's own order, all instructions that read the old contents of a memory come before an
instruction that writes into it. So an instruction runs earlier only if nothing else ever is in the
memory of its result. What it reads then is complete, and is not overwritten before it, because it
would not be overwritten before its place in XLA's order either.
"""

from collections.abc import Iterable, Mapping, Sequence

from jax_cxl._takeover.hlo.module import Computation, Instruction, Module

# Instructions that write nothing but their results, into memory of their own.
_PURE = {
    *("fusion", "convert", "copy", "transpose", "slice", "concatenate", "reshape", "broadcast"),
    *("reduce", "pad", "iota", "dynamic-slice", "add", "multiply", "subtract", "divide"),
}
# Instructions by which a fusion may write into the memory of an operand. Names and source lines may
# contain these texts too, and may differ between processes. So only opcodes count.
_IN_PLACE = (b"dynamic-update-slice", b"scatter", b"custom-call")
_INSIDE = (*_IN_PLACE, b"fusion")
# Instructions whose result is in the memory of their operands. Barriers are among them, because XLA
# removes them later.
VIEWS = ("bitcast", "get-tuple-element", "tuple", "opt-barrier")
# Instructions that take no memory.
FREE = (*VIEWS, "parameter", "constant")


def source(computation: Computation, number: int) -> Instruction:
    """Follows get-tuple-elements from an instruction to the instruction that computed the array.

    Returns the get-tuple-element itself if this computation does not build its tuple.
    """
    instruction = computation.instruction(number)
    while instruction.opcode == "get-tuple-element":
        whole = computation.instruction(instruction.operands[0])
        while whole.opcode == "opt-barrier":
            whole = computation.instruction(whole.operands[0])
        if whole.opcode != "tuple":
            break
        part = whole.operands[instruction.proto.get(Instruction.TUPLE_INDEX)]
        instruction = computation.instruction(part)
    return instruction


def movable(
    module: Module, computation: Computation, sequence: Sequence[int], dones: Mapping[int, int]
) -> set[int]:
    """Returns the instructions, by their ids, that may run earlier than in XLA's order `sequence`.

    `dones` has the done of each start of the pool.
    """
    instructions = [computation.instruction(number) for number in sequence]
    pure = {each.id for each in instructions if _is_pure(module, each)}
    # Dones and starts of the pool never write into their operands.
    own = {each.id for each in instructions if each.opcode in FREE or _is_own(each)}
    joined = _joined(computation, instructions, own | pure | {*dones, *dones.values()})
    free = {each.id for each in instructions if each.opcode in FREE}
    return free | (pure - joined) | {start for start, done in dones.items() if done not in joined}


def _joined(
    computation: Computation, instructions: Sequence[Instruction], own: set[int]
) -> set[int]:
    """Returns the instructions whose result may share memory with another result.

    Either an instruction that is not in `own` writes into this memory, or the computation returns
    this result, which may then be in the memory of an argument.
    """
    # For each instruction, the instructions whose memory its result may share.
    owners: dict[int, set[int]] = {}
    joined: set[int] = set()
    for each in instructions:
        parts = []
        if each.opcode in VIEWS:
            part = source(computation, each.id).id
            parts = each.operands if part == each.id else [part]
        owners[each.id] = {owner for part in parts for owner in owners[part]} or {each.id}
        if each.id not in own:
            joined |= {owner for operand in each.operands for owner in owners[operand]}
    return joined | owners[computation.root.id]


def _is_pure(module: Module, instruction: Instruction) -> bool:
    """Whether an instruction writes only its own result, and waits for nothing."""
    opcode, proto = instruction.opcode, instruction.proto
    if opcode not in _PURE or proto.has(Instruction.ALIASING):
        return False
    return opcode != "fusion" or not _writes_in_place(module, proto.integers(Instruction.CALLED))


def _writes_in_place(module: Module, called: Iterable[int]) -> bool:
    """Whether a computation, or a fusion in it, has an instruction that writes in place."""
    for number in called:
        if not module.contains_any(number, _INSIDE):
            continue
        for instruction in module.computation(number).with_any(_INSIDE):
            if instruction.opcode.encode() in _IN_PLACE:
                return True
            inside = instruction.proto.integers(Instruction.CALLED)
            if instruction.opcode == "fusion" and _writes_in_place(module, inside):
                return True
    return False


def _is_own(instruction: Instruction) -> bool:
    """Whether an instruction that is not pure has a result in memory of its own."""
    proto = instruction.proto
    if instruction.opcode == "custom-call":
        return not (proto.has(Instruction.ALIASING) or proto.has(Instruction.HAS_SIDE_EFFECT))
    return instruction.opcode in ("dot", "convolution")
