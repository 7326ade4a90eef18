"""Runs a script or module as one rank.

`python -m jax_cxl._launch.rank PARENT FD KIND NAME ARGS...`, started by the supervisor only. It
runs the user's code in its own process, so that the script is `__main__` as under plain `python`,
and adds to it: the rank dies with its supervisor, JAX finds the launcher, lines of stdout leave at
once although stdout is a pipe, and the supervisor learns of a failure before the interpreter shuts
down. There JAX waits up to 5 minutes for the other ranks, which wait for this one.
"""

import contextlib
import io
import os
import runpy
import signal
import socket
import sys
import types

from jax_cxl._launch import detect, environment, process

SCRIPT = "script"
MODULE = "module"


def main() -> None:
    """Runs what the command line says."""
    parent, report, kind, name = sys.argv[1:5]
    # SIGKILL, because JAX's preemption service swallows SIGTERM.
    process.die_with(int(parent), signal.SIGKILL)
    # What the script starts has no part in this.
    os.set_inheritable(int(report), False)
    environment.reports = reports = socket.socket(fileno=int(report))
    detect.install()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    sys.argv[:] = [name, *sys.argv[5:]]
    started = os.getpid()
    try:
        _run(kind, name)
        return
    except BaseException as error:
        # Not a child that the script forked and that ends here.
        if os.getpid() == started:
            _report(reports, error)
        if not isinstance(error, Exception):
            raise
        error.__traceback__ = _users_part(error.__traceback__)
        # As the interpreter does, for whoever asks at exit how the program ended.
        sys.last_value = error
        sys.excepthook(type(error), error, error.__traceback__)
    sys.exit(1)


def _run(kind: str, name: str) -> None:
    """Runs the user's code."""
    if kind == MODULE:
        runpy.run_module(name, run_name="__main__", alter_sys=True)
        return
    # Python puts the script's folder first; -m put the current one there.
    if not sys.flags.safe_path:
        sys.path[0] = os.path.dirname(os.path.realpath(name))
    runpy.run_path(name, run_name="__main__")


def _report(reports: socket.socket, error: BaseException) -> None:
    """Tells the supervisor the status with which this process is going to end, unless 0."""
    status = 1
    if isinstance(error, SystemExit):
        # As the interpreter reads it: None is success, a text is printed and means 1.
        code = error.code
        status = 0 if code is None else code & 0xFF if isinstance(code, int) else 1
    elif isinstance(error, KeyboardInterrupt):
        status = 128 + signal.SIGINT
    if status:
        with contextlib.suppress(OSError):  # The supervisor has gone.
            reports.send(bytes([status]))


def _users_part(traceback: types.TracebackType | None) -> types.TracebackType | None:
    """Drops the frames of this file and of runpy, which would hide the user's."""
    while traceback is not None:
        filename = traceback.tb_frame.f_code.co_filename
        if filename not in (__file__, runpy.run_path.__code__.co_filename):
            break
        traceback = traceback.tb_next
    return traceback


if __name__ == "__main__":
    main()
