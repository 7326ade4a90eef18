"""Programs that this process loads instead of compiling them.

`jax.experimental.serialize_executable` loads programs of earlier jobs, and so does JAX's persistent
compilation cache. Such a program may be the first program of the job that has collectives. So
jax_cxl starts before it is loaded.
"""

import contextlib
import functools
import re
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Any

from jax_cxl import _compat, _core, errors
from jax_cxl._job import lowered_programs
from jax_cxl._takeover.hlo.module import Instruction, Module

_OURS = b"jax_cxl_"
# A thread holds this while it loads a program that the process has not lowered.
_loading = threading.Lock()


@functools.cache
def install() -> None:
    """Makes jax_cxl start before this process loads a program with collectives of jax_cxl.

    Also tells the handlers which programs the process loads.
    """
    lowered_programs.install()
    _compat.compilation.around_loading(_load)


def _load(serialized: bytes, devices: Sequence[int] | None, load: Callable[[], Any]) -> Any:
    """Loads a program. Starts jax_cxl before that if the program calls collectives of jax_cxl."""
    if _OURS not in serialized:
        return load()
    # A process that loads no such program does not need these modules.
    from jax_cxl._takeover import start

    running = start.ensure_started()
    # If so, JAX's cache has the program, and JAX has lowered it.
    lowered = lowered_programs.is_loading()
    with contextlib.nullcontext() if lowered else _loading:
        executable = load()
        for module in executable.hlo_modules():
            names = _check(module.as_serialized_hlo_module_proto(), devices, running)
            for program in () if lowered else names:
                text = f"{sorted(names)} {devices} {_canonical(module.to_string())}"
                lowered_programs.complete(program, text, executable)
    return executable


def _canonical(text: str) -> str:
    """Returns XLA's text of a loaded program without what may differ between ranks.

    Lines of the source differ, and numbers of threads.
    """
    text = text[max(text.find("\n%"), text.find("\nENTRY"), 0) :]
    text = re.sub(r", metadata=\{[^\n]*?\}(?=,|\n|$)", "", text)
    return re.sub(r'"outer_dimension_partitions":\[[^\]]*\]', "", text)


def _check(data: bytes, devices: Sequence[int] | None, running: Any) -> set[str]:
    """Checks that a loaded module fits this job; returns the names of the programs in its calls."""
    module = Module(data)
    assignment = module.device_assignment
    compiled_for = [] if assignment is None else assignment.reshape(-1).tolist()
    if devices is not None and len(devices) == len(compiled_for) and devices != compiled_for:
        _refuse(
            module.name,
            f"for the devices {compiled_for} in this order, and is loaded for {devices}. Load it"
            " for its devices in its order (execution_devices=), or compile it again",
        )
    ranks = {running.rank_of_device.get(device) for device in compiled_for}
    programs = set()
    for _, call in module.with_any((_OURS,)):
        if not call.proto.text(Instruction.TARGET).startswith(_OURS.decode()):
            continue
        config = call.proto.text(Instruction.BACKEND_CONFIG)
        if number := re.search(r"\bsite = (\d+) ", config):
            line = module.source_line(call, lowered_programs.is_own_file)
            _core.PROGRAMS.note_numbered_line(module.name, int(number[1]), line)
        if (generation := _integers(config, "generation")) not in ([], [running.generation]):
            _refuse(
                module.name,
                f"in generation {generation[0]} of a job, and this is generation"
                f" {running.generation} (each initialize and each regroup begin one)."
                " Compile it again",
            )
        if compiled_for and not ranks.issuperset(members := _integers(config, "groups")):
            _refuse(
                module.name,
                f"in another job: its devices were the ranks {members}, and are others in this job."
                " Compile it again",
            )
        programs.update(re.findall(r'\bprogram = "([^"]*)"', config))
    return programs


def _integers(config: str, name: str) -> list[int]:
    """Returns an attribute that is an integer or an array, in any of the forms that MLIR writes.

    The forms are `0 : i32`, `array<i32: 0, 1>`, `dense<[0, 1]> : tensor<2xi32>`, `dense<0> : ...`
    and, for long arrays, `dense<"0x0000000001000000"> : ...`.
    """
    found = re.search(rf"\b{name} = (?:array<i32(?:: )?|dense<)?([^>:]*)", config)
    if found is None:
        return []
    if hexadecimal := re.search('"0x(.*)"', found[1]):
        return [number for (number,) in struct.iter_unpack("<i", bytes.fromhex(hexadecimal[1]))]
    return [int(number) for number in re.findall(r"-?\d+", found[1])]


def _refuse(program: str, why: str) -> None:
    raise errors.NotInitializedError(f"the loaded program {program} was compiled {why}.")
