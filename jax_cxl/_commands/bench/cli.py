"""The command line of `python -m jax_cxl bench`."""

import argparse
import importlib.util
import os
import sys
from collections.abc import Sequence
from typing import Any

from jax_cxl import _sizes
from jax_cxl._commands import option_types
from jax_cxl._commands.measuring import results_file
from jax_cxl._commands.measuring.ops import MAX_RANKS, OPS
from jax_cxl._job.launched.environment import launched
from jax_cxl._nccl import library

_PROGRAM = "python -m jax_cxl bench"
_BASELINES = ("gloo", "nccl")
_DTYPES = ("float32", "float16", "bfloat16", "int32", "uint32", "int8", "uint8")

_DESCRIPTION = """\
Measures collectives through the pool, and baselines to compare, in the columns of nccl-tests.

Starts --ranks processes on this machine, with one CPU device or GPU each, unless it already runs
under python -m jax_cxl.launch or mpirun. The pool is memory of this machine, unless JAX_CXL_POOL
says otherwise: all figures are emulated."""

_EPILOG = """\
columns:
  size     bytes of the larger of a rank's two buffers, as in nccl-tests
  count    elements of one block: the data that a rank sends to one other rank
  min, median, max
           of the times of a call in --repeats samples. A sample is one jitted program that executes
           the collective --calls times. The default is as many calls as fit into 10 ms, at most
           1000 (on GPUs the size decides). The time of a call is the time of the slowest rank,
           divided by the calls. With --calls 1 it includes the work of JAX to start a program
  algbw    size / median time
  busbw    algbw times 2(n-1)/n for psum, 1 for broadcast, reduce and ppermute, else (n-1)/n
  #wrong   elements, on all ranks, that differ from NumPy's result in any bit. If jax_cxl has wrong
           elements, the exit status is 1
  written  bytes that the rank that writes most writes to the pool in a call, counted by
           jax_cxl.stats()

  A backend without an operation has no row for it. docs/benchmarking.md describes all measurements.

NCCL takes the fastest way that it finds, such as NVLink. With NCCL_P2P_DISABLE=1 in the environment
it goes through host memory, the path that a pool replaces.

examples:
  python -m jax_cxl bench --baseline gloo
  python -m jax_cxl bench --ranks 4 --ops psum --sizes 8:64MiB:x8 --json psum.json
  NCCL_P2P_DISABLE=1 python -m jax_cxl bench --platform cuda --ranks 4 --baseline nccl"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark. Returns the exit status: 1 if a result of jax_cxl is wrong."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    parser, options = _parse(arguments)
    os.environ["JAX_PLATFORMS"] = options.platform
    # JAX is imported only in the ranks, because the launcher forks, and JAX starts threads.
    if launched() or "OMPI_COMM_WORLD_SIZE" in os.environ or "PMI_SIZE" in os.environ:
        return _run(parser, options, arguments)
    from jax_cxl._commands.launch import cli as launch

    return launch.main(
        [
            *("-n", str(options.ranks), "--devices-per-process", "1", "--no-prefix"),
            *("-m", "jax_cxl", "bench", *arguments),
        ]
    )


def _run(parser: argparse.ArgumentParser, options: argparse.Namespace, arguments: list[str]) -> int:
    """Runs the measurement in one of the ranks."""
    import jax

    import jax_cxl
    from jax_cxl._commands.measuring import measure, report
    from jax_cxl._commands.measuring.world import World

    load = os.getloadavg()[0]
    jax_cxl.initialize()
    if not jax.process_count() == jax.device_count() == options.ranks:
        parser.error(
            f"--ranks {options.ranks} needs {options.ranks} processes of one device each; there are"
            f" {jax.process_count()} processes and {jax.device_count()} devices"
        )
    world = World(jax.process_index(), jax.process_count())
    first = world.rank == 0
    command = results_file.command_line(_PROGRAM, arguments)
    found = report.header(load, command) | {"results": []}
    results = found["results"]

    def tell(line: str) -> None:
        if first:
            print(line, flush=True)

    tell(report.heading(world.size))
    for shape, result in measure.measure(world, ["jax_cxl", *options.baseline], options):
        tell(report.row(shape, result))
        results.append(result)
        # Write the file after each row, so that an interrupted run keeps its rows.
        if first and options.json:
            found["machine"] = report.machine(load)
            results_file.write(options.json, found)
    return report.status(results, tell)


def _parse(arguments: list[str]) -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    parser = option_types.command("bench", _DESCRIPTION, epilog=_EPILOG)
    parser.add_argument(
        "--ranks",
        type=int,
        default=2,
        metavar="N",
        help=f"processes to start, 2 to {MAX_RANKS} (default: 2)",
    )
    parser.add_argument(
        "--ops",
        type=_names(tuple(OPS)),
        default="all_gather,psum,psum_scatter,all_to_all",
        metavar="A,B",
        help=f"what to measure, of {', '.join(OPS)} (default: %(default)s)",
    )
    parser.add_argument(
        "--sizes",
        type=option_types.telling(_sizes.parse_list),
        default="4KiB:16MiB:x4",
        metavar="FROM:TO:xF",
        help="a range, or a list of sizes and ranges (default: %(default)s)",
    )
    parser.add_argument("--dtype", choices=_DTYPES, default="float32", help="(default: float32)")
    parser.add_argument("--platform", choices=("cpu", "cuda"), default="cpu", help="(default: cpu)")
    parser.add_argument(
        "--baseline",
        type=_names(_BASELINES),
        default=[],
        metavar="A,B",
        help="what else to measure: jax.lax over gloo (CPUs), or over nccl (GPUs; see below)",
    )
    option_types.add_number(parser, "--repeats", 1, "samples per row", 7, "R")
    option_types.add_number(parser, "--calls", 0, "collectives in a sample; see below", None, "K")
    parser.add_argument(
        "--json", type=option_types.output_file, metavar="FILE", help="write the results"
    )
    options = parser.parse_args(arguments)
    try:
        _check(options)
    except ValueError as error:
        parser.error(str(error))
    return parser, options


def _check(options: argparse.Namespace) -> None:
    """Checks, before anything starts, that the options fit together, and that the machine has what
    they need.
    """
    if not 2 <= options.ranks <= MAX_RANKS:
        raise ValueError(
            f"--ranks must be from 2 to {MAX_RANKS}, not {options.ranks}: sums over more"
            " ranks would not be exact in int8"
        )
    cuda = options.platform == "cuda"
    if cuda and not importlib.util.find_spec("jax_cxl._cuda"):
        raise ValueError(
            "--platform cuda needs jax_cxl's CUDA module, which was not built: see docs/cuda.md."
        )
    if cuda and not library.has_gpu():
        raise ValueError(
            "--platform cuda needs an NVIDIA GPU, and this machine has no driver: leave --platform"
            " out."
        )
    for name in options.baseline:
        if (name == "nccl") != cuda:
            raise ValueError(
                f"--baseline {name} needs --platform {'cpu' if cuda else 'cuda'}: NCCL moves the"
                " memory of GPUs, and Gloo that of the host."
            )


def _names(known: tuple[str, ...]) -> Any:
    def parse(text: str) -> list[str]:
        names = list(dict.fromkeys(text.split(",")))
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(known)}")
        return names

    return parse
