"""The programs that this process lowers, and the source lines of their collectives.

The handlers identify each execution of a collective (docs/decisions/0002). For this they have to
know which program XLA loads, when it has loaded the whole program, and how JAX counts the program's
launches (cc/ffi/call/program_sites.h).
"""

import contextlib
import functools
import hashlib
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from jax_cxl import _compat, _core
from jax_cxl._job import launch_ids, setting

# XLA's collectives in the programs that this process has compiled. `taken` counts, by name, those
# that run through the pool. `left` counts, by reason, those that XLA executes itself although they
# were supposed to run through the pool.
taken: Counter[str] = Counter()
left: Counter[str] = Counter()

# What `before_compilation` calls.
_prepare: list[Callable[[], None]] = []

# Whether this thread is loading a program (`loading`).
_loading = threading.local()

# Name of a program -> what a thread holds while it loads a program of this name.
_locks: dict[str, threading.RLock] = {}
_locks_lock = threading.Lock()

# Name of a program -> `id` of the last lowered module of this name. A later module may get the same
# `id`; then messages name the lines of both modules.
_last: dict[str, int] = {}

_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep


def name(module: Any) -> str:
    """Returns the name of the module that is being lowered. It is equal on all ranks."""
    return module.operation.attributes["sym_name"].value


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
        _core.PROGRAMS.forget_lines(program)
    names = ("op", "reduce_op", "dtype", "count")
    op, reduce_op, dtype, count = (int(attributes[name]) for name in names)
    _core.PROGRAMS.note_line(program, attributes["name"], op, reduce_op, dtype, count, site)


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


@functools.cache
def install() -> None:
    """Tells the handlers, from now on, which programs this process loads."""
    _compat.compilation.around_compilation(_compile)


def before_compilation(prepare: Callable[[], None]) -> None:
    """Calls `prepare` before each compilation, in the thread that compiles. Devices exist by then.

    This function may be called at any time, even while JAX makes its backends.
    """
    install()
    if prepare not in _prepare:
        _prepare.append(prepare)


@contextlib.contextmanager
def loading(program: str) -> Iterator[None]:
    """While a program is loaded. One thread at a time loads programs of a name."""
    with _locks_lock:
        lock = _locks.setdefault(program, threading.RLock())
    with lock:
        outer, _loading.now = is_loading(), True
        try:
            yield
        finally:
            _loading.now = outer


def is_loading() -> bool:
    """Whether this thread is inside `loading`."""
    return getattr(_loading, "now", False)


def complete(program: str, text: str, executable: Any) -> None:
    """Tells the handlers that XLA has loaded a program.

    `text` tells programs apart, and is equal on all ranks that load this program.
    """
    digest = hashlib.sha256(text.encode()).digest()
    first = launch_ids.first(executable.fingerprint)
    _core.PROGRAMS.complete(program, int.from_bytes(digest[:8], "little"), first)


def _compile(program: _compat.compilation.Compilation, compile_program: Callable[[], Any]) -> Any:
    for prepare in _prepare:
        prepare()
    # A program on one device has no collectives.
    if len(program.devices) == 1:
        return compile_program()
    if program.platform == "cpu":
        program.count_equal_programs_together()
    lowered = name(program.module)
    with loading(lowered):
        _core.PROGRAMS.begin(lowered)
        executable = compile_program()
        if _core.PROGRAMS.has_sites(lowered):
            # The compiler hook changes the program after this text. What it makes of the program
            # depends on the devices and the setting. `strict` only decides whether it raises.
            wanted = setting.current()
            made_for = f"{program.devices} {wanted and wanted._replace(strict=False)}"
            complete(lowered, f"{made_for} {program.text()}", executable)
    return executable
