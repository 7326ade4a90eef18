"""The command line of the wheel jax_cxl_nccl: `python -m jax_cxl_nccl run PROGRAM ...`."""

import argparse
import os
import sys

from . import library, tune
from .report import cli as report

_DESCRIPTION = """\
Runs a program whose collectives call NCCL, such as those of PyTorch, JAX and vLLM, through
pools in /dev/shm. The program does not change, and this process becomes it.

    python -m jax_cxl_nccl run train.py
    python -m jax_cxl_nccl run torchrun --nproc-per-node=2 train.py

python -m jax_cxl_nccl report measures the GPUs of this machine, and
python -m jax_cxl_nccl tune finds the tuning table that is fastest on them."""


def main() -> None:
    """Runs the command. It does not return."""
    parser = argparse.ArgumentParser(
        prog="python -m jax_cxl_nccl run",
        usage="%(prog)s [--hosts HOSTS] PROGRAM ...",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    library.add_hosts_option(parser)
    parser.add_argument("program", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    command, arguments = sys.argv[1:2], sys.argv[2:]
    if command == ["report"]:
        sys.exit(report.main(arguments, "python -m jax_cxl_nccl report"))
    if command == ["tune"]:
        sys.exit(tune.main(arguments, "python -m jax_cxl_nccl tune"))
    options = parser.parse_args(arguments if command == ["run"] else ["--help"])
    if not options.program:
        parser.error("PROGRAM is missing")
    try:
        variables = {**os.environ, **library.environment(options.hosts)}
        print(f"jax_cxl: {library.describe(options.hosts)}", file=sys.stderr, flush=True)
        library.become(options.program, variables)
    except FileNotFoundError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
