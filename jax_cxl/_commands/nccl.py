"""The command line of `python -m jax_cxl nccl`."""

import shlex
import sys
from collections.abc import Sequence

from jax_cxl._commands import option_types
from jax_cxl._nccl import library, tune
from jax_cxl._nccl.report import cli as report

_DESCRIPTION = """\
Prints the environment with which a program that calls NCCL communicates through
pools: PyTorch, JAX, vLLM and others, unchanged. Nothing of it needs JAX. The pools lie
in /dev/shm, or in the memory of several machines that JAX_CXL_NCCL_POOL names.

    env $(python -m jax_cxl nccl) python train.py

GPUs without peer access (GeForce RTX 40 and 50, L4, L40S, many virtual machines)
gain most: NCCL itself goes through the host's memory there.

python -m jax_cxl nccl report measures these GPUs, with NCCL and with the pool.
python -m jax_cxl nccl tune finds the tuning table that is fastest on them."""


def main(arguments: Sequence[str]) -> int:
    """Runs the command; returns 1 if the library has not been built, else 0."""
    if arguments[:1] == ["report"]:
        return report.main(arguments[1:], "python -m jax_cxl nccl report")
    if arguments[:1] == ["tune"]:
        return tune.main(arguments[1:], "python -m jax_cxl nccl tune")
    parser = option_types.command("nccl", _DESCRIPTION)
    library.add_hosts_option(parser)
    options = parser.parse_args(arguments)
    try:
        variables = library.environment(options.hosts)
    except FileNotFoundError as error:
        print(f"jax_cxl nccl: {error}", file=sys.stderr)
        return 1
    print(" ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items()))
    print(f"jax_cxl nccl: {library.describe(options.hosts)}", file=sys.stderr)
    return 0
