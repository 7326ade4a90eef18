"""The command line of `python -m jax_cxl bench`."""

import argparse
import importlib.util
import json
import os
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

from jax_cxl import _sizes
from jax_cxl._commands import option_types
from jax_cxl._commands.bench import nccl_options, requirements, results_file, teams
from jax_cxl._commands.bench.ops import MAX_RANKS, OPS
from jax_cxl._job.launched.environment import launched

_BASELINES = ("gloo", "mpi", "nccl-shm", "nccl-socket", "nccl-nvlink")
_DTYPES = ("float32", "float16", "bfloat16", "int32", "uint32", "int8", "uint8")

_DESCRIPTION = """\
Measures collectives through the pool, and baselines to compare, in the columns of nccl-tests.

Starts --ranks processes on this machine, with one CPU device or GPU each, unless it already runs
under python -m jax_cxl.launch or mpirun. The pool is memory of this machine, unless JAX_CXL_POOL
says otherwise: all figures are emulated."""

_EPILOG = """\
times:
  A sample is one jitted program that executes the collective --calls times in a loop. Each call
  depends on the result of the previous call, so that XLA drops, merges or overlaps none of them.
  The ranks start together. The time of a sample is the time of the slowest rank, from dispatch
  until its output is complete, divided by the number of calls. Input and output are donated, so
  that no call allocates memory. By default the calls of a sample fill 10 ms (at most 1000 calls);
  on GPUs their number depends on the size. With --calls 1 each call is dispatched and awaited
  separately, and the time includes the work of JAX for that.
  min, median and max are taken over --repeats samples. In each repeat all backends take turns.

columns:
  size     bytes of the larger of a rank's two buffers, as in nccl-tests
  count    elements of one block: the data that a rank sends to one other rank
  algbw    size / median time
  busbw    algbw times 2(n-1)/n for psum, 1 for broadcast, reduce and ppermute, else (n-1)/n
  #wrong   elements, on all ranks, that differ from NumPy's result in any bit. If jax_cxl has wrong
           elements, the exit status is 1
  written  bytes that the rank that writes most writes to the pool in a call, counted by
           jax_cxl.stats()
  bound    bound time / median time. In the same run all ranks copy to shared memory at once, and
           then from it. The bound time is the time of such copies for the bytes that the operation
           must at least write and read. A share above 100% means that the collective found more in
           the caches than the copies. Not measured between GPUs: a benchmark in C++ does that.

  A backend without an operation has no row for it: jax.lax has no broadcast, reduce, gather or
  scatter on CPUs. On GPUs it has broadcast (lax.pbroadcast). In place of the others the nearest
  collective of all ranks is measured: psum, all_gather and all_to_all. jax.lax has no pscan, no
  barrier and no operations on rows. A barrier has one row, of size 0.

operations on rows:
  ragged_all_to_all and take_rows bring each row of a rank to one rank. moe_dispatch brings each row
  to 2 experts, and moe_combine brings rows back; each rank has 4 experts. A colon and a name after
  the operation choose the routing: skewed (a fifth of the experts gets 80% of the choices) or hot
  (all tokens choose expert 0). Without a name it is uniform. Rows have up to 1,024 elements. A
  rank's buffer for the rows that it gets has room for twice the mean if the routing is uniform, and
  otherwise for the rows of all ranks; the rest is filled with zeros. benchmarks/models/moe.py
  compares whole exchanges with padded all_to_alls.

time on the device:
  With --platform cuda and sizes up to 1 MiB, JAX's profiler traces a sample at the end. The rows
  marked "on the device" have the time from the start of a call's first kernel to the end of its
  last kernel, without the work of XLA between calls. A kernel waits for ranks that start later. So
  the time of a call is the shortest among the ranks that get data from others. min, median and max
  are those of the calls of the sample. The results file has them as "device_us".

NCCL:
  nccl-shm     through host memory (NCCL_P2P_DISABLE=1): the path that a pool replaces
  nccl-socket  through loopback sockets (NCCL_SHM_DISABLE=1, NCCL_NET=Socket too), as between hosts
  nccl-nvlink  NCCL's own choice: NVLink or PCIe between peers, if the machine has them
  Each needs processes of its own. All processes run from the start, and measure in turn, case by
  case.

examples:
  python -m jax_cxl bench --baseline gloo
  python -m jax_cxl bench --ranks 4 --ops psum --sizes 8:64MiB:x8 --json psum.json
  python -m jax_cxl bench --baseline gloo,mpi
  python -m jax_cxl bench -b 8 -e 256M -f 2 -n 20 -w 5 -o all_reduce -d float
  python -m jax_cxl bench --platform cuda --ranks 4 --sizes 4KiB:1GiB:x4 \\
      --baseline nccl-shm,nccl-socket,nccl-nvlink --json nccl.json
  python -m jax_cxl bench --draw nccl.json --plot nccl.png"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark. Returns the exit status: 1 if a result of jax_cxl is wrong."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    parser, options = _parse(arguments)
    if options.draw:
        from jax_cxl._commands.bench import report

        report.write_plot(options.plot, json.loads(options.draw.read_text()))
        return 0
    os.environ["JAX_PLATFORMS"] = options.platform
    # JAX is not imported yet, because the launcher forks.
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
        # Start ranks as the launcher does: one device each, any number, and not bound to a core.
        os.environ["JAX_NUM_CPU_DEVICES"] = "1"
        os.environ.setdefault("OMPI_MCA_rmaps_base_oversubscribe", "1")
        os.environ.setdefault("OMPI_MCA_hwloc_base_binding_policy", "none")
        command = ["mpirun", "-n", str(options.ranks), sys.executable, "-m", "jax_cxl", "bench"]
        os.execvp(command[0], [*command, *arguments])
    from jax_cxl._commands.launch import cli as launch

    return launch.main(
        [
            *("-n", str(options.ranks), "--devices-per-process", "1", "--no-prefix"),
            *("-m", "jax_cxl", "bench", *arguments),
        ]
    )


def _start_teams(options: argparse.Namespace, arguments: list[str]) -> int:
    """Runs this command again as several processes for each environment that NCCL needs."""
    status, found = teams.run(teams.of(options.baseline), options.ranks, arguments)
    from jax_cxl._commands.bench import report

    if found:
        found["command"] = _command(arguments)
        if options.json:
            results_file.write(options.json, found)
        if options.plot:
            report.write_plot(options.plot, found)
    return status


def _command(arguments: list[str]) -> str:
    return results_file.command_line("python -m jax_cxl bench", arguments)


def _run(parser: argparse.ArgumentParser, options: argparse.Namespace, arguments: list[str]) -> int:
    """Runs the measurement in one of the ranks."""
    import jax

    import jax_cxl
    from jax_cxl._commands.bench import backends as backends_lib, measure, report
    from jax_cxl._commands.bench.world import World

    load = os.getloadavg()[0]
    names = options.team or ["jax_cxl", *options.baseline]
    if "jax_cxl" in names:
        jax_cxl.initialize()
    else:
        jax.distributed.initialize()
    if not jax.process_count() == jax.device_count() == options.ranks:
        parser.error(
            f"--ranks {options.ranks} needs {options.ranks} processes of one device each; there are"
            f" {jax.process_count()} processes and {jax.device_count()} devices"
        )
    backends = backends_lib.make(names, options.platform, options.calls)
    world = World(jax.process_index(), jax.process_count())
    first = world.rank == 0
    table = report.Table(sys.stdout if first else None, world.size, "jax_cxl" in names)
    settings = measure.Settings(
        *(options.ops, options.sizes, options.dtype, options.repeats, options.calls),
        warmup=options.warmup_iters,
        copies=options.platform == "cpu",
        compile_first=options.platform == "cuda",
    )
    mpi = next((b.version for b in backends if isinstance(b, backends_lib.MpiBackend)), None)
    found = report.header(load, _command(arguments), mpi) | {"results": []}
    results = found["results"]

    def save() -> None:
        # Write the file after each row, so that an interrupted run keeps its rows.
        if first and options.json:
            found["machine"] = report.machine(load)
            results_file.write(options.json, found)

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
        help="what else to measure: gloo (jax.lax on CPUs), mpi (mpi4py, under mpirun),"
        " nccl-shm, nccl-socket, nccl-nvlink (GPUs only; see below)",
    )
    parser.add_argument(
        "--repeats",
        type=option_types.whole_number(1),
        metavar="R",
        help="samples per row (default: 7, with -n 1)",
    )
    parser.add_argument(
        "--calls",
        type=option_types.whole_number(0),
        default=0,
        metavar="K",
        help="collectives in a sample; see below",
    )
    parser.add_argument(
        "--json", type=option_types.output_file, metavar="FILE", help="write the results"
    )
    parser.add_argument(
        "--plot", type=option_types.output_file, metavar="FILE.png", help="draw the results"
    )
    parser.add_argument(
        "--draw",
        type=option_types.telling(_results),
        metavar="FILE.json",
        help="measure nothing; draw this results file into the --plot file",
    )
    # teams.py passes these to the processes of a team.
    parser.add_argument("--team", type=lambda text: text.split(","), help=argparse.SUPPRESS)
    parser.add_argument("--turn", default="", help=argparse.SUPPRESS)
    nccl_options.add(parser)
    options = parser.parse_args(arguments)
    nccl_options.translate(parser, options)
    if not 2 <= options.ranks <= MAX_RANKS:
        parser.error(
            f"--ranks must be from 2 to {MAX_RANKS}, not {options.ranks}: sums of the inputs have"
            f" to be exact in int8 too, and the sum of more than {MAX_RANKS} ranks would not be"
        )
    if "int" in options.dtype and any(name.startswith("moe_combine") for name in options.ops):
        parser.error("moe_combine sums with weights: choose a floating --dtype, such as float32")
    if options.draw and not options.plot:
        parser.error("--draw needs --plot FILE.png, the file to draw")
    if options.plot and importlib.util.find_spec("matplotlib") is None:
        parser.error("--plot needs matplotlib: pip install matplotlib")
    try:
        requirements.check(options.baseline, options.platform, options.dtype)
    except ValueError as error:
        parser.error(str(error))
    return parser, options


def _results(text: str) -> pathlib.Path:
    """Returns the path of a results file of this command.

    Raises:
      ValueError: the file does not exist, or is not a results file.
    """
    path = pathlib.Path(text)
    try:
        rows = json.loads(path.read_text())["results"]
        if not all({"op", "backend", "bytes", "busbw_gbps"} <= row.keys() for row in rows):
            raise KeyError
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        raise ValueError(f"{text!r} is not a results file; name a file that --json wrote") from None
    return path


def _names(known: tuple[str, ...]) -> Any:
    """Returns an argparse type: a list of known names."""

    def parse(text: str) -> list[str]:
        names = list(dict.fromkeys(text.split(",")))
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(known)}")
        return names

    return parse
