"""Which programs this process lowers, where they call collectives, and when XLA has loaded them.

The handlers tell the collectives of a program apart by the order in which XLA makes
their custom calls (cc/ffi/program_sites.h), and need to know where one program ends
and the next begins.
"""

import os
import threading
from typing import Any

import jax

from jax_cxl import _compat, _core

_lowered = threading.local()

# Name of a program -> the module, of those of that name, that was lowered last.
# By id, which a later module may have again: then both modules' lines are named.
_last: dict[str, int] = {}

_HERE = os.path.dirname(__file__) + os.sep


def name(module: Any) -> str:
    """Returns the name of the module that is being lowered, the same on all ranks."""
    symbol = module.operation.attributes["sym_name"].value
    if not hasattr(_lowered, "names"):
        _lowered.names = set()
    _lowered.names.add(symbol)
    return symbol


def has_arguments(ctx: Any) -> bool:
    """Whether the program that is being lowered takes any."""
    for function in ctx.module_context.module.body.operations:
        if function.attributes["sym_name"].value == "main":
            return len(function.arguments) > 0
    return True


def note_site(ctx: Any, attributes: dict[str, Any]) -> None:
    """Notes where the user's code calls the collective that is being lowered.

    Lines of source are no attributes of the call: two ranks may reach equal programs from
    different lines, and attributes have to be the same on all of them (docs/decisions/0002).
    Handlers find a call's line by its program and attributes; where calls of one program have
    equal attributes, they get all of the lines.

    Args:
      ctx: context of the lowering rule.
      attributes: the attributes of the call.
    """
    for frame in _compat.user_frames(ctx):
        if not frame.file_name.startswith(_HERE):
            break
    else:
        return
    program = attributes["program"]
    module = id(ctx.module_context)
    if _last.get(program) != module:
        # Another program, or the same after an edit: its lines are not the old ones.
        _last[program] = module
        _core.forget_sites(program)
    site = f"{_short(frame.file_name)}:{frame.start_line} ({frame.function_name})"
    _core.note_site(
        program,
        attributes["name"],
        int(attributes["op"]),
        int(attributes["reduce_op"]),
        int(attributes["dtype"]),
        int(attributes["count"]),
        site,
    )


def _short(path: str) -> str:
    """Returns the path from the working directory, if that is shorter."""
    try:
        relative = os.path.relpath(path)
    except (OSError, ValueError):  # The working directory is gone, or on another drive.
        return path
    return relative if len(relative) < len(path) else path


def listen() -> None:
    """Tells the handlers from now on when a program is complete."""
    jax.monitoring.register_event_duration_secs_listener(_on_duration)


def _on_duration(event: str, duration_secs: float, **_: str | int) -> None:
    if event != _compat.BACKEND_COMPILE_EVENT:
        return
    # Which program it was is not said reliably, but it was compiled by the thread that lowered
    # it; for its other programs, none of which is being loaded now, this changes nothing.
    for program in getattr(_lowered, "names", ()):
        _core.complete_program(program)
