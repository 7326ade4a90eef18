"""Runs a script or module as one rank.

The supervisor starts `python -m jax_cxl._commands.launch.rank PARENT FD BOARD KIND NAME ARGS...`.
That process itself runs the user's code, so that the script is `__main__`, as under plain `python`.
It adds four things: the rank dies with its supervisor; JAX finds the launcher; lines of stdout are
written at once although stdout is a pipe; and the supervisor learns of a failure before the
interpreter shuts down. During shutdown JAX waits up to 5 minutes for the other ranks, which wait
for this rank.
"""

import contextlib
import io
import os
import runpy
import signal
import socket
import sys
import types

from jax_cxl._job import processes, variables
from jax_cxl._job.launched import board, detect, environment

SCRIPT = "script"
MODULE = "module"


def main() -> None:
    """Runs the script or module that the command line names."""
    parent, report, shared, kind, name = sys.argv[1:6]
    # SIGKILL, because JAX's preemption service swallows SIGTERM.
    processes.die_with(int(parent), signal.SIGKILL)
    # Processes that the script starts must not have this descriptor.
    os.set_inheritable(int(report), False)
    environment.reports = reports = socket.socket(fileno=int(report))
    os.set_inheritable(int(shared), False)
    environment.board = board.Board(int(shared), int(os.environ[variables.SIZE]))
    detect.install()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    sys.argv[:] = [name, *sys.argv[6:]]
    started = os.getpid()
    try:
        _run(kind, name)
        return
    except BaseException as error:
        # A child that the script has forked, and that ends here, must not report.
        if os.getpid() == started:
            _report(reports, error)
        if not isinstance(error, Exception):
            raise
        error.__traceback__ = _users_part(error.__traceback__)
        # Exit handlers read this to find out how the program ended. The interpreter would set it,
        # too, if the error reached it.
        sys.last_value = error
        sys.excepthook(type(error), error, error.__traceback__)
    sys.exit(1)


def _run(kind: str, name: str) -> None:
    if kind == MODULE:
        runpy.run_module(name, run_name="__main__", alter_sys=True)
        return
    # Put the script's folder first in sys.path, as Python does. There is the current folder now,
    # because this module was started with `-m`.
    if not sys.flags.safe_path:
        sys.path[0] = os.path.dirname(os.path.realpath(name))
    runpy.run_path(name, run_name="__main__")


def _report(reports: socket.socket, error: BaseException) -> None:
    """Tells the supervisor the exit status of this process, unless it is 0."""
    status = 1
    if isinstance(error, SystemExit):
        # This follows the interpreter: None means status 0, and an integer is the status. The
        # interpreter prints any other object, and ends with status 1.
        code = error.code
        status = 0 if code is None else code & 0xFF if isinstance(code, int) else 1
    elif isinstance(error, KeyboardInterrupt):
        status = 128 + signal.SIGINT
    if status:
        with contextlib.suppress(OSError):  # The supervisor may be gone.
            reports.send(bytes([status]))


def _users_part(traceback: types.TracebackType | None) -> types.TracebackType | None:
    """Removes the frames of this file and of runpy, which would hide the frames of the user."""
    while traceback is not None:
        filename = traceback.tb_frame.f_code.co_filename
        if filename not in (__file__, runpy.run_path.__code__.co_filename):
            break
        traceback = traceback.tb_next
    return traceback


if __name__ == "__main__":
    main()
