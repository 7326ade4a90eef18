"""The command line of `python -m jax_cxl bench`."""

import argparse
import importlib.util
import os
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

from jax_cxl import _command_line
from jax_cxl._bench import requirements, sizes, teams
from jax_cxl._bench.ops import MAX_RANKS, OPS
from jax_cxl._launch.environment import launched

_BASELINES = ("gloo", "mpi", "nccl-shm", "nccl-socket", "nccl-nvlink")
_DTYPES = ("float32", "float16", "bfloat16", "int32", "uint32", "int8", "uint8")

_DESCRIPTION = """\
Measures collectives through the pool, and baselines beside them, in the columns of nccl-tests.

Starts --ranks processes on this machine, of one CPU device or GPU each, unless it already runs
under python -m jax_cxl.launch or mpirun. The pool is memory of this machine (JAX_CXL_POOL chooses
another): all figures are emulated."""

_EPILOG = """\
what a time is:
  A sample is one jitted program that executes the collective --calls times in a loop; each call
  depends on the result of the call before, so none is dropped, merged or overlapped. Ranks start
  together; the sample's time is that of the slowest rank, from dispatch until its output is
  there, divided by the calls. Input and output are donated, so no call pays for fresh memory.
  By default there are as many calls as fill 10 ms, at most 1000, and on GPUs a number that depends
  on the size; with --calls 1 every call is dispatched and awaited on its own, and the time includes
  what JAX needs for that.
  min, median and max are those of --repeats samples. In each repeat all backends take their turn.

columns:
  size     bytes of the larger of a rank's two buffers, NCCL's convention
  count    elements of one block: what a rank contributes to one other rank
  algbw    size / median time
  busbw    algbw times 2(n-1)/n for psum, 1 for broadcast, reduce and ppermute, else (n-1)/n
  #wrong   elements, over all ranks, that differ from NumPy's result in any bit; those of jax_cxl
           make the exit status 1
  bound    bound time / median time. All ranks copy to shared memory at once, then from it, in
           the same run; the bound time is how long that takes for the bytes the operation must
           write and read at least. Above 100% means that more stayed in caches than in the copies.
           Not measured between GPUs (the bound benchmark in C++ does that).

  An operation that a backend does not have gives no row: jax.lax has no broadcast, reduce,
  gather or scatter on CPUs. On GPUs it has broadcast (lax.pbroadcast), and of the others what the
  nearest collective of all ranks gives: psum, all_gather and all_to_all.

time on the device:
  With --platform cuda and for sizes up to 1 MiB, after everything else, a sample is traced by
  JAX's profiler: what follows "on the device" is the time from the start of a call's first kernel
  to the end of its last one, without what XLA needs between calls. A kernel waits for ranks that
  start later; so a call's time is the shortest among the ranks that get data from others.
  min, median and max are those of the calls of the sample; "device_us" in the results file.

NCCL:
  nccl-shm     through memory of the host (NCCL_P2P_DISABLE=1): the path that a pool replaces
  nccl-socket  through loopback sockets (NCCL_SHM_DISABLE=1, NCCL_NET=Socket too): crosses hosts
  nccl-nvlink  NCCL's own choice: NVLink or PCIe between peers, where the machine has them
  Each needs processes of its own. All are there from the start and measure case by case in turn.

examples:
  python -m jax_cxl bench --baseline gloo
  python -m jax_cxl bench --ranks 4 --ops psum --sizes 8:64MiB:x8 --json psum.json
  python -m jax_cxl bench --baseline gloo,mpi
  python -m jax_cxl bench --platform cuda --ranks 4 --sizes 4KiB:1GiB:x4 \\
      --baseline nccl-shm,nccl-socket,nccl-nvlink --json nccl.json"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark; returns the status to exit with: 1 if a result of jax_cxl is wrong."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    parser, options = _parse(arguments)
    os.environ["JAX_PLATFORMS"] = options.platform
    # Before JAX is imported: the launcher forks.
    if _is_rank():
        return _run(parser, options, arguments)
    if options.platform == "cuda":
        return _start_teams(options, arguments)
    return _start_ranks(options, arguments)


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


def _start_teams(options: argparse.Namespace, arguments: list[str]) -> int:
    """Runs this command again as several processes for each environment that NCCL needs."""
    status, found = teams.run(teams.of(options.baseline), options.ranks, arguments)
    from jax_cxl._bench import report

    if found:
        found["command"] = _command(arguments)
        if options.json:
            report.write_json(options.json, found)
        if options.plot:
            report.write_plot(options.plot, found)
    return status


def _command(arguments: list[str]) -> str:
    return _command_line.recorded("python -m jax_cxl bench", arguments)


def _run(parser: argparse.ArgumentParser, options: argparse.Namespace, arguments: list[str]) -> int:
    """Measures, as one of the ranks."""
    import jax

    import jax_cxl
    from jax_cxl._bench import backends as backends_lib
    from jax_cxl._bench import measure, report
    from jax_cxl._bench.world import World

    load = os.getloadavg()[0]
    names = options.team or ["jax_cxl", *options.baseline]
    if "jax_cxl" in names:
        jax_cxl.initialize()
    else:
        jax.distributed.initialize()
    if not jax.process_count() == jax.device_count() == options.ranks:
        parser.error(
            f"--ranks {options.ranks} needs as many processes of one device each; there are"
            f" {jax.process_count()} processes and {jax.device_count()} devices"
        )
    backends = backends_lib.make(names, options.platform, options.calls)
    world = World(jax.process_index(), jax.process_count())
    first = world.rank == 0
    table = report.Table(sys.stdout if first else None, world.size, "jax_cxl" in names)
    settings = measure.Settings(
        *(options.ops, options.sizes, options.dtype, options.repeats, options.calls),
        copies=options.platform == "cpu",
        compile_first=options.platform == "cuda",
    )
    mpi = next((b.version for b in backends if isinstance(b, backends_lib.MpiBackend)), None)
    found = report.header(load, _command(arguments), mpi) | {"results": []}
    results = found["results"]

    def save() -> None:
        # Again and again: a run that is cut short leaves what it had.
        if first and options.json:
            found["machine"] = report.machine(load)
            report.write_json(options.json, found)

    cases = measure.prepare(world, backends, settings)
    turns = teams.Turns(options.turn)
    progress = report.show_progress if first else lambda _: None
    for row in measure.measure(world, cases, settings, turns, progress):
        table.add(row)
        results.append(row.as_json())
        save()
    if options.platform == "cuda":
        for shape, times in measure.measure_on_device(world, cases, turns, progress):
            for result in results:
                mine = times.get(result["backend"])
                if mine and (result["op"], result["bytes"]) == (shape.op.name, shape.bytes):
                    result["device_us"] = mine.as_json()
                    table.add_device_times(shape, result["backend"], mine)
            save()
    if first and options.plot and not options.team:
        report.write_plot(options.plot, found)
    return table.close(results)


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
    parser.add_argument("--platform", choices=("cpu", "cuda"), default="cpu", help="(default: cpu)")
    parser.add_argument(
        "--baseline",
        type=_names(_BASELINES),
        default=[],
        metavar="A,B",
        help="what to measure besides: gloo (jax.lax on CPUs), mpi (mpi4py, under mpirun),"
        " nccl-shm, nccl-socket, nccl-nvlink (GPUs only; see below)",
    )
    parser.add_argument(
        "--repeats", type=int, default=7, metavar="R", help="samples per row (default: 7)"
    )
    parser.add_argument(
        "--calls", type=int, default=0, metavar="K", help="collectives in a sample; see below"
    )
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write the results")
    parser.add_argument("--plot", type=pathlib.Path, metavar="FILE.png", help="draw the results")
    # How the processes of a team (teams.py) are told what they are.
    parser.add_argument("--team", type=lambda text: text.split(","), help=argparse.SUPPRESS)
    parser.add_argument("--turn", default="", help=argparse.SUPPRESS)
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
