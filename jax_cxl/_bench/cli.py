"""The command line of `python -m jax_cxl bench`."""

import argparse
import importlib.util
import os
import pathlib
import shlex
import sys
from collections.abc import Sequence
from typing import Any

from jax_cxl._bench import requirements, sizes
from jax_cxl._bench.ops import MAX_RANKS, OPS
from jax_cxl._launch.environment import launched

_BASELINES = ("gloo", "mpi", "nccl-shm", "nccl-socket")
_DTYPES = ("float32", "float16", "bfloat16", "int32", "uint32", "int8", "uint8")

_DESCRIPTION = """\
Measures collectives through the pool, and baselines beside them, in the columns of nccl-tests.

Starts --ranks processes on this machine, of one CPU device each, unless it already runs under
python -m jax_cxl.launch or mpirun. The pool is memory of this machine (JAX_CXL_POOL chooses
another): all figures are emulated."""

_EPILOG = """\
what a time is:
  A sample is one jitted program that executes the collective --calls times in a loop; each call
  depends on the result of the call before, so none is dropped, merged or overlapped. Ranks start
  together; the sample's time is that of the slowest rank, from dispatch until its output is
  there, divided by the calls. Input and output are donated, so no call pays for fresh memory.
  By default there are as many calls as fill 10 ms, at most 1000; with --calls 1 every call is
  dispatched and awaited on its own, and the time includes what JAX needs for that.
  min, median and max are those of --repeats samples. In each repeat all backends take their turn.

columns:
  size     bytes of the larger of a rank's two buffers, NCCL's convention
  count    elements of one block: what a rank contributes to one other rank
  algbw    size / median time
  busbw    algbw times 2(n-1)/n for psum, 1 for broadcast, reduce and ppermute, else (n-1)/n
  #wrong   elements, over all ranks, that differ from NumPy's result in any bit
  bound    bound time / median time. All ranks copy to shared memory at once, then from it, in
           the same run; the bound time is how long that takes for the bytes the operation must
           write and read at least. Above 100% means that more stayed in caches than in the copies.

  An operation that a backend does not have gives no row: jax.lax has no broadcast, reduce,
  gather or scatter on CPUs.

examples:
  python -m jax_cxl bench --baseline gloo
  python -m jax_cxl bench --ranks 4 --ops psum --sizes 8:64MiB:x8 --json psum.json
  python -m jax_cxl bench --baseline gloo,mpi"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark; returns the status to exit with: 1 if a result is wrong."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    parser, options = _parse(arguments)
    os.environ["JAX_PLATFORMS"] = options.platform
    # Before JAX is imported: the launcher forks.
    if not _is_rank():
        return _start_ranks(options, arguments)
    return _run(parser, options, arguments)


def _is_rank() -> bool:
    return launched() or "OMPI_COMM_WORLD_SIZE" in os.environ or "PMI_SIZE" in os.environ


def _start_ranks(options: argparse.Namespace, arguments: list[str]) -> int:
    """Runs this command again as several processes."""
    if "mpi" in options.baseline:
        # As under the launcher: one device, any number of ranks, no rank bound to a core.
        os.environ["JAX_NUM_CPU_DEVICES"] = "1"
        os.environ.setdefault("OMPI_MCA_rmaps_base_oversubscribe", "1")
        os.environ.setdefault("OMPI_MCA_hwloc_base_binding_policy", "none")
        command = ["mpirun", "-n", str(options.ranks), sys.executable, "-m", "jax_cxl", "bench"]
        os.execvp(command[0], [*command, *arguments])
    from jax_cxl import launch

    return launch.main(
        [
            *("-n", str(options.ranks), "--devices-per-process", "1", "--no-prefix"),
            *("-m", "jax_cxl", "bench", *arguments),
        ]
    )


def _run(parser: argparse.ArgumentParser, options: argparse.Namespace, arguments: list[str]) -> int:
    """Measures, as one of the ranks."""
    import jax

    import jax_cxl
    from jax_cxl._bench import backends as backends_lib
    from jax_cxl._bench import measure, report
    from jax_cxl._bench.world import World

    load = os.getloadavg()[0]
    jax_cxl.initialize()
    if not jax.process_count() == jax.device_count() == options.ranks:
        parser.error(
            f"--ranks {options.ranks} needs as many processes of one device each; there are"
            f" {jax.process_count()} processes and {jax.device_count()} devices"
        )
    backends = backends_lib.make(options.baseline)
    world = World(jax.process_index(), jax.process_count())
    first = world.rank == 0
    table = report.Table(sys.stdout if first else None, world.size)
    settings = measure.Settings(
        options.ops, options.sizes, options.dtype, options.repeats, options.calls
    )
    rows = []
    for row in measure.measure(
        world, backends, settings, report.show_progress if first else lambda _: None
    ):
        table.add(row)
        rows.append(row)
    if first:
        mpi = next((b.version for b in backends if isinstance(b, backends_lib.MpiBackend)), None)
        header: dict[str, Any] = {
            "machine": report.machine(load),
            "command": f"python -m jax_cxl bench {shlex.join(arguments)}",
            "versions": report.versions(mpi),
            "emulated": True,
        }
        if options.json:
            report.write_json(options.json, header, rows)
        if options.plot:
            report.write_plot(options.plot, rows)
    return 1 if any(row.wrong for row in rows) else 0


def _parse(arguments: list[str]) -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    parser = argparse.ArgumentParser(
        prog="python -m jax_cxl bench",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--ranks", type=int, default=2, metavar="N", help="processes to start (default: 2)"
    )
    parser.add_argument(
        "--ops",
        type=_names(tuple(OPS)),
        default="all_gather,psum,psum_scatter,all_to_all",
        metavar="A,B",
        help=f"of {', '.join(OPS)} (default: %(default)s)",
    )
    parser.add_argument(
        "--sizes",
        type=_sizes,
        default="4KiB:16MiB:x4",
        metavar="FROM:TO:xF",
        help="a range, or a list of sizes and ranges (default: %(default)s)",
    )
    parser.add_argument("--dtype", choices=_DTYPES, default="float32", help="(default: float32)")
    parser.add_argument(
        "--platform", choices=("cpu", "cuda"), default="cpu", help="(default: cpu; cuda is to come)"
    )
    parser.add_argument(
        "--baseline",
        type=_names(_BASELINES),
        default=[],
        metavar="A,B",
        help="what to measure besides: gloo (jax.lax on CPUs), mpi (mpi4py, under mpirun),"
        " nccl-shm, nccl-socket (GPUs only)",
    )
    parser.add_argument(
        "--repeats", type=int, default=7, metavar="R", help="samples per row (default: 7)"
    )
    parser.add_argument(
        "--calls", type=int, default=0, metavar="K", help="collectives in a sample; see below"
    )
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write the results")
    parser.add_argument("--plot", type=pathlib.Path, metavar="FILE.png", help="draw the results")
    options = parser.parse_args(arguments)
    if not 2 <= options.ranks <= MAX_RANKS:
        parser.error(f"--ranks must be from 2 to {MAX_RANKS}, not {options.ranks}")
    if options.repeats < 1:
        parser.error("--repeats must be at least 1")
    if options.calls < 0:
        parser.error("--calls must not be negative")
    if options.plot and importlib.util.find_spec("matplotlib") is None:
        parser.error("--plot needs matplotlib: pip install matplotlib")
    for path in (options.json, options.plot):
        if path and not path.absolute().parent.is_dir():
            parser.error(f"no such folder: {path.parent}")
    try:
        requirements.check(options.baseline, options.platform, options.dtype)
    except ValueError as error:
        parser.error(str(error))
    return parser, options


def _names(known: tuple[str, ...]) -> Any:
    """Returns an argparse type: a list of known names."""

    def parse(text: str) -> list[str]:
        names = list(dict.fromkeys(text.split(",")))
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(known)}")
        return names

    return parse


def _sizes(text: str) -> list[int]:
    """Parses sizes, for argparse."""
    try:
        return sizes.parse_list(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
