"""The command line of `python -m jax_cxl nccl`, and of the wheel jax_cxl_nccl."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from typing import NoReturn

from . import library, tune
from .report import cli as report

_DESCRIPTION = f"""\
Prints the environment with which a program that calls NCCL communicates through
pools: PyTorch, JAX, vLLM and others, unchanged. Nothing of it needs JAX. The pools lie
in /dev/shm, or in the memory of several machines that JAX_CXL_NCCL_POOL names.

    env $({library.PROGRAM}) python train.py

GPUs without peer access (GeForce RTX 40 and 50, L4, L40S, many virtual machines)
gain most: NCCL itself goes through the host's memory there.

{library.PROGRAM} run train.py runs a program so.
{library.PROGRAM} report measures these GPUs, with NCCL and with the pool.
{library.PROGRAM} tune finds the tuning table that is fastest on them."""

_DESCRIPTION_OF_RUN = f"""\
Runs a program whose collectives call NCCL, such as those of PyTorch, JAX and vLLM, through
pools in /dev/shm. The program does not change, and this process becomes it.

    {library.PROGRAM} run train.py
    {library.PROGRAM} run torchrun --nproc-per-node=2 train.py"""


def main(arguments: Sequence[str]) -> int:
    """Runs the command; returns its exit status."""
    commands = {"run": _run, "report": report.main, "tune": tune.main}
    if arguments[:1] and arguments[0] in commands:
        return commands[arguments[0]](arguments[1:])
    parser = library.command_parser(library.PROGRAM, _DESCRIPTION)
    library.add_hosts_option(parser)
    options = parser.parse_args(arguments)
    try:
        variables = library.environment(options.hosts)
    except FileNotFoundError as error:
        print(f"{library.PROGRAM}: {error}", file=sys.stderr)
        return 1
    print(" ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items()))
    print(f"{library.PROGRAM}: {library.describe(options.hosts)}", file=sys.stderr)
    return 0


def _run(arguments: Sequence[str]) -> NoReturn:
    """Runs a program, or ends with an error. Does not return."""
    usage = "%(prog)s [--hosts HOSTS] PROGRAM ..."
    parser = library.command_parser(f"{library.PROGRAM} run", _DESCRIPTION_OF_RUN, usage=usage)
    library.add_hosts_option(parser)
    parser.add_argument("program", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if not options.program:
        parser.error("PROGRAM is missing")
    try:
        variables = {**os.environ, **library.environment(options.hosts)}
        print(f"jax_cxl: {library.describe(options.hosts)}", file=sys.stderr, flush=True)
        library.become(options.program, variables)
    except FileNotFoundError as error:
        parser.error(str(error))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
