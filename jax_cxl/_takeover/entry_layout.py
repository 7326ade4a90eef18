"""Keeps the memory spaces of a program's arguments and results.

When a hook returns a module, XLA takes the layouts of its arguments and results from the module's
entry computation. Before XLA schedules a module for CPUs, the entry computation does not show which
arguments and results are in host memory. Only the module itself does. Without this code, XLA would
lose that information and return arrays in the memory of the device.
"""

from jax_cxl._takeover.hlo import shape as shapes
from jax_cxl._takeover.hlo.module import Instruction, Module
from jax_cxl._takeover.hlo.wire import Message


def obstacle(module: Module) -> str:
    """Returns a description of what XLA would lose even after `keep`, "" if it loses nothing."""
    for what, instruction, wanted in _lost(module):
        # `keep` corrects memory spaces only, and only before the module is scheduled.
        kept = not module.is_scheduled and _in_device_memory(
            instruction.proto.blob(Instruction.SHAPE)
        ) == _in_device_memory(wanted)
        # A result that is an argument cannot have a memory space other than the argument's.
        if not kept or (what == "result" and instruction.opcode == "parameter"):
            return f"XLA would forget the layout of the program's {what} {instruction.name}"
    return ""


def keep(module: Module) -> None:
    """Writes the information that XLA would lose into the entry computation."""
    lost = _lost(module)
    for _, instruction, wanted in lost:
        module.entry.set_shape(instruction.id, wanted)
    # The instruction that computes a result names no memory space. Since JAX 0.11 XLA fails if that
    # result reuses the memory of an argument whose memory space is named. So such a result gets
    # memory of its own.
    module.forget_donations({each.parameter for what, each, _ in lost if what == "argument"})


def _lost(module: Module) -> list[tuple[str, Instruction, bytes]]:
    """Returns the arguments and the result for which the module and its entry computation differ.

    For each of them, returns "argument" or "result", the instruction of the entry computation, and
    the serialized ShapeProto that the module has for it.
    """
    arguments, result = module.program_shape
    found = [
        ("argument", each, arguments[each.parameter])
        for each in module.entry.instructions()
        if each.opcode == "parameter"
    ]
    found.append(("result", module.entry.root, result))
    return [each for each in found if each[1].proto.blob(Instruction.SHAPE) != each[2]]


def _in_device_memory(shape: bytes) -> bytes:
    return shapes.without_memory_space(Message(shape)).encode()
