"""The launcher, whose ranks are copies of one process that has imported JAX already.

    python tests/helpers/forked_launch.py MODULE,MODULE... ARGUMENTS OF THE LAUNCHER

Importing JAX takes a second of CPU time, which is most of what a rank of a small test needs. The
launcher starts a new interpreter for each rank; this program forks instead. Everything else is the
launcher's own code. `launch/launch_test.py`, `launch/output_test.py` and a part of `ending_test.py`
test the launcher as users run it.
"""

import atexit
import contextlib
import gc
import importlib
import os
import signal
import subprocess
import sys
import threading
import traceback
import types
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

# NumPy must not start threads before the forks: they would not exist in the forked ranks.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from jax_cxl import launch
from jax_cxl._commands.launch import rank, supervisor

_RANK = [sys.executable, "-m", rank.__name__]


def import_modules(names: str) -> None:
    """Imports the modules that all forks need. Commas separate the names.

    The objects of the modules live until the end, so they are hidden from the garbage collector. If
    the collector of a fork looked at them, it would take a seventh of the fork's time, and the
    kernel would copy their pages.
    """
    gc.disable()
    for name in names.split(","):
        importlib.import_module(name)
    # JAX imports this module only when it lowers its first program. Without the import here, each
    # fork would import it again.
    with contextlib.suppress(ImportError):
        importlib.import_module("jaxlib.mlir.dialects.mhlo")
    gc.freeze()
    gc.enable()


def fork() -> int:
    """Forks without JAX's warning about threads: JAX has no threads before its first use."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return os.fork()


class _Forked:
    """A forked rank, with the part of `subprocess.Popen` that the supervisor uses."""

    def __init__(self, pid: int, stdout: Any, stderr: Any):
        self.pid = pid
        self.stdout = stdout
        self.stderr = stderr
        self.returncode: int | None = None


def _start(command: Sequence[str], **options: Any) -> Any:
    """Takes the place of `subprocess.Popen`: forks for a rank, starts other programs as usual."""
    if list(command[:3]) != _RANK:
        return subprocess.Popen(command, **options)
    pipes = [
        os.pipe() if options[name] == subprocess.PIPE else None for name in ("stdout", "stderr")
    ]
    pid = fork()
    if pid == 0:
        _run_and_exit(lambda: _become(command, pipes, options))
    ends = []
    for pipe in pipes:
        if pipe is not None:
            os.close(pipe[1])
        ends.append(None if pipe is None else os.fdopen(pipe[0], "rb"))
    return _Forked(pid, *ends)


def _become(
    command: Sequence[str], pipes: Sequence[tuple[int, int] | None], options: Mapping[str, Any]
) -> None:
    """Turns this process, a fork of the supervisor, into a rank, and runs it."""
    os.setpgid(0, options["process_group"])
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)) and number != signal.SIGINT:
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if options["stdin"] == subprocess.DEVNULL:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for fd, pipe in enumerate(pipes, 1):
        if pipe is not None:
            os.dup2(pipe[1], fd)
    kept = 3
    for fd in sorted(options["pass_fds"]):
        os.closerange(kept, fd)
        kept = fd + 1
    os.closerange(kept, os.sysconf("SC_OPEN_MAX"))
    os.environ.clear()
    os.environ.update(options["env"])
    _configure()
    sys.argv[:] = [rank.__file__, *command[3:]]
    sys.path[0] = os.getcwd()
    rank.main()


def launch_and_exit(arguments: Sequence[str]) -> NoReturn:
    """Runs the launcher in this process, and ends the process."""
    supervisor.subprocess = types.SimpleNamespace(
        PIPE=subprocess.PIPE, DEVNULL=subprocess.DEVNULL, Popen=_start
    )
    _run_and_exit(lambda: launch.main(arguments))


def _run_and_exit(run: Callable[[], int | None]) -> NoReturn:
    """Runs a function, and ends this process with the status that the function returns."""
    status = 1
    try:
        status = run() or 0
    except SystemExit as error:
        status = _status(error)
    except BaseException:
        traceback.print_exc()
    finally:
        _end(status)


def _configure() -> None:
    """Sets JAX's options from the rank's environment variables.

    JAX read the variables when the supervisor imported it, and those were the supervisor's.
    """
    import jax

    for variable, value in os.environ.items():
        name = variable.lower()
        if variable.startswith("JAX_") and name in jax.config.values:
            kind = type(jax.config.values[name])
            jax.config.update(name, kind(value) if kind in (int, float) else value)


def _status(error: SystemExit) -> int:
    if isinstance(error.code, str):
        print(error.code, file=sys.stderr)
        return 1
    return (error.code or 0) & 0xFF


def _end(status: int) -> NoReturn:
    """Ends this process as an interpreter does, but does not tear the modules down."""
    try:
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)


def main() -> NoReturn:
    """Imports the modules and runs the launcher."""
    modules, *arguments = sys.argv[1:]
    import_modules(modules)
    launch_and_exit(arguments)


if __name__ == "__main__":
    main()
