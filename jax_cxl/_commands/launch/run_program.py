"""The command line of `python -m jax_cxl run`."""

import argparse
import functools
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from jax_cxl._commands import option_types
from jax_cxl._job import variables
from jax_cxl._job.launched import entry_point
from jax_cxl._nccl import library

_DESCRIPTION = """\
Runs a program whose collectives go through the pool. The program does not change, and
this process becomes it. For several ranks on this machine use python -m jax_cxl launch.

    python -m jax_cxl run --nccl train.py
    python -m jax_cxl run --nccl torchrun --nproc-per-node=2 train.py

A name that ends in .py is a script for this Python."""


def main(arguments: Sequence[str]) -> NoReturn:
    """Runs the command. It does not return."""
    parser = option_types.command(
        "run",
        _DESCRIPTION,
        usage="%(prog)s [--nccl] [--hosts HOSTS] [--replace-collectives] PROGRAM ...",
    )
    flag = functools.partial(parser.add_argument, action="store_true")
    flag("--nccl", help="move collectives that call NCCL, such as those of PyTorch, JAX and vLLM")
    library.add_hosts_option(parser)
    flag(
        "--replace-collectives",
        help="collectives that XLA inserts, or that the program calls in jax.lax",
    )
    parser.add_argument("program", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    program = options.program[1:] if options.program[:1] == ["--"] else options.program
    if not program:
        parser.error("PROGRAM is missing")
    if not options.nccl and not options.replace_collectives:
        parser.error("say which collectives: --nccl or --replace-collectives")
    environment = dict(os.environ)
    if options.nccl:
        try:
            environment |= library.environment(options.hosts)
        except FileNotFoundError as error:
            parser.error(f"--nccl: {error}")
        print(f"jax_cxl: --nccl: {library.describe(options.hosts)}", file=sys.stderr, flush=True)
    if options.replace_collectives:
        if not entry_point.is_installed():
            parser.error(entry_point.absent())
        environment[variables.REPLACE_COLLECTIVES] = "1"
    try:
        library.become(program, environment)
    except FileNotFoundError as error:
        parser.error(str(error))
