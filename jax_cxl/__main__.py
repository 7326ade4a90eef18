"""The command line: `jax_cxl <command> [options]`, or `python -m jax_cxl <command> [options]`."""

import difflib
import importlib
import os
import select
import signal
import sys

# Command -> the module whose main(arguments) runs the command, and its line in the help.
COMMANDS = {
    "bench": ("jax_cxl._commands.bench.cli", "measure collectives, and baselines to compare"),
    "clean": (
        "jax_cxl._commands.status.clean",
        "remove pools that dead jobs have left in /dev/shm",
    ),
    "doctor": ("jax_cxl._commands.status.doctor", "check whether this machine can run jax_cxl"),
    "launch": ("jax_cxl._commands.launch.cli", "run a script as several ranks on this machine"),
    "nccl": ("jax_cxl._nccl.__main__", "print the environment that gives NCCL programs the pool"),
    "run": ("jax_cxl._commands.launch.run_program", "run a program through the pool"),
    "store": ("jax_cxl._commands.store.cli", "list, check, copy and mend what is in a store"),
    "status": ("jax_cxl._commands.status.status", "show which ranks of a job wait for which"),
    "trace": ("jax_cxl._commands.status.trace", "write the last calls of a job as a timeline"),
    "tune": ("jax_cxl._commands.bench.tune", "measure a tuning table for this machine"),
}


def _help() -> str:
    width = max(map(len, COMMANDS))
    commands = "\n".join(f"  {name:{width}}  {what}" for name, (_, what) in COMMANDS.items())
    return f"""\
usage: jax_cxl [--version] COMMAND ...

Collectives and shared arrays for JAX through memory that all processes map.

commands:
{commands}

jax_cxl COMMAND --help says more. python -m jax_cxl does the same as jax_cxl."""


def main(argv: list[str] | None = None) -> int:
    """Runs a command; returns the status to exit with."""
    arguments = sys.argv[1:] if argv is None else argv
    first = arguments[0] if arguments else ""
    if first in ("-h", "--help", "help"):
        print(_help())
        return 0
    if first in ("-V", "--version"):
        import jax_cxl

        print(f"jax_cxl {jax_cxl.__version__}")
        return 0
    if first not in COMMANDS:
        if first:
            near = difflib.get_close_matches(first, COMMANDS, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            print(f"jax_cxl: there is no command {first!r}{hint}\n", file=sys.stderr)
        print(_help(), file=sys.stderr)
        return 2
    module = importlib.import_module(COMMANDS[first][0])
    try:
        status: int = module.main(arguments[1:])
        sys.stdout.flush()
    except BrokenPipeError:
        if not _reader_is_gone():
            raise
        # The interpreter flushes stdout again at exit, which must not fail a second time.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return status


def _reader_is_gone() -> bool:
    """Returns whether the reader of this process's output has exited, as after `| head`."""
    poller = select.poll()
    poller.register(sys.stdout.fileno(), 0)
    return any(event & select.POLLERR for _, event in poller.poll(0))


if __name__ == "__main__":
    sys.exit(main())
