"""The programs that this process lowers, and the source lines of their collectives.

The handlers number the collectives of a program in the order in which XLA makes their custom calls
(cc/ffi/call/program_sites.h). The numbers start again with the next program of the same name. So
the handlers have to know when XLA has loaded the whole program.
"""

import os
import threading
from collections import Counter
from typing import Any

import jax

from jax_cxl import _compat, _core

# XLA's collectives in the programs that this process has compiled. `taken` counts, by name, those
# that run through the pool. `left` counts, by reason, those that XLA executes itself although they
# were supposed to run through the pool.
taken: Counter[str] = Counter()
left: Counter[str] = Counter()

_lowered = threading.local()

# Name of a program -> `id` of the last lowered module of this name. A later module may get the same
# `id`; then messages name the lines of both modules.
_last: dict[str, int] = {}

_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep


def name(module: Any) -> str:
    """Returns the name of the module that is being lowered. It is equal on all ranks."""
    symbol = module.operation.attributes["sym_name"].value
    if not hasattr(_lowered, "names"):
        _lowered.names = set()
    _lowered.names.add(symbol)
    return symbol


def note_site(ctx: Any, attributes: dict[str, Any]) -> None:
    """Stores the source line from which the user calls the collective that is being lowered.

    The line is not an attribute of the custom call. Attributes have to be equal on all ranks
    (docs/decisions/0002), but two ranks may reach equal programs from different lines. Handlers
    find the line of a call by its program and attributes. If several calls of a program have equal
    attributes, each of them gets the lines of all.
    """
    site = _site(ctx)
    if site is None:
        return
    program = attributes["program"]
    module = id(ctx.module_context)
    if _last.get(program) != module:
        # This is another program, or an edited one: the stored lines are not its lines.
        _last[program] = module
        _core.forget_sites(program)
    names = ("op", "reduce_op", "dtype", "count")
    op, reduce_op, dtype, count = (int(attributes[name]) for name in names)
    _core.note_site(program, attributes["name"], op, reduce_op, dtype, count, site)


def _site(ctx: Any) -> str | None:
    """Returns the line from which the user calls the collective that is being lowered."""
    for frame in _compat.tracing.user_frames(ctx):
        if not is_own_file(frame.file_name):
            return f"{_short(frame.file_name)}:{frame.start_line} ({frame.function_name})"
    # Without jit JAX runs each operation at once, inside the user's call, and records no frames.
    # JAX reuses the program for later calls from other lines, so the line is only that of the first
    # call.
    for file, line, function in _compat.tracing.running_frames():
        if not is_own_file(file):
            return f"{_short(file)}:{line} ({function}), the first such call without jit"
    return None


def is_own_file(file: str) -> bool:
    """Whether a source file belongs to this package."""
    return file.startswith(_PACKAGE)


def _short(path: str) -> str:
    """Returns the path relative to the working directory if that is shorter."""
    try:
        relative = os.path.relpath(path)
    except (OSError, ValueError):  # The working directory is gone, or on another drive.
        return path
    return relative if len(relative) < len(path) else path


def listen() -> None:
    """Tells the handlers, from now on, when XLA has loaded a program."""
    jax.monitoring.register_event_duration_secs_listener(_on_duration)


def _on_duration(event: str, duration_secs: float, **_: str | int) -> None:
    if event != _compat.compilation.BACKEND_COMPILE_EVENT:
        return
    # The event does not reliably name the program. But the thread that lowered the program also
    # compiles it. This thread loads none of its other programs now, so completing them all is safe.
    for program in getattr(_lowered, "names", ()):
        _core.complete_program(program)
