"""How long collectives take on the device, read from a trace of JAX's profiler.

    NCCL_P2P_DISABLE=1 python -m jax_cxl.launch -n 2 --devices-per-process 1 \\
        benchmarks/collectives/device_time.py --json=device.json

The kernels of a call wait for ranks that start later. So the time of a call is the shortest among
the ranks. `python -m jax_cxl bench` measures the time between calls of a program, which contains
the work of XLA.
"""

import argparse
import collections
import glob
import os
import pathlib
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jax.profiler import ProfileData

import jax_cxl
from jax_cxl import _sizes
from jax_cxl._commands.measuring import backends, measure, report, results_file
from jax_cxl._commands.measuring.ops import OPS, Shape
from jax_cxl._commands.measuring.world import World

_CALLS = 100


class Event(NamedTuple):
    """An operation of a stream of a device; times are in nanoseconds."""

    name: str
    start: float
    duration: float


class NoDeviceTimeError(Exception):
    """A trace does not show the times of the calls. The message lists what the trace contains."""


def trace(run: Callable[[], None]) -> list[Event]:
    """Returns the operations of this process's GPUs while `run` runs.

    Raises:
      NoDeviceTimeError: nothing was traced. `run` runs in any case, because other ranks need it.
    """
    with tempfile.TemporaryDirectory(prefix="jax_cxl_trace_") as folder:
        options = jax.profiler.ProfileOptions()
        options.host_tracer_level = options.python_tracer_level = 0
        try:
            jax.profiler.start_trace(folder, profiler_options=options)
        except (RuntimeError, ValueError, OSError) as error:
            run()
            raise NoDeviceTimeError(f"the profiler did not start: {error}") from error
        run()
        try:
            jax.profiler.stop_trace()
            (path,) = glob.glob(f"{folder}/**/*.xplane.pb", recursive=True)
            return read(ProfileData.from_file(path))
        except (RuntimeError, ValueError, OSError) as error:
            raise NoDeviceTimeError(f"the profiler left nothing to read: {error}") from error


def read(profile: ProfileData) -> list[Event]:
    """Returns the operations of all streams of GPUs in a profile.

    Raises:
      NoDeviceTimeError: the profile has no streams of GPUs.
    """
    lines = [(plane.name, line) for plane in profile.planes for line in plane.lines]
    events = [
        Event(event.name, event.start_ns, event.duration_ns)
        for plane, line in lines
        if "GPU" in plane and line.name.startswith("Stream")
        for event in line.events
    ]
    if not events:
        there = ", ".join(f"{plane} {line.name!r}" for plane, line in lines)
        raise NoDeviceTimeError(f"the trace has no streams of GPUs; it has: {there or 'nothing'}")
    return events


def of_calls(events: Sequence[Event], backend: str, calls: int) -> list[float]:
    """Returns the microseconds of each call of a program of `calls` equal collectives.

    All calls execute the same kernels, one call after another. The time of a call is the time from
    the start of its first kernel to the end of its last kernel.

    Args:
      events: operations of the device.
      backend: the backend of the collectives: "jax_cxl" or "nccl".
      calls: number of calls.

    Raises:
      NoDeviceTimeError: the calls do not all have the same number of kernels in the trace.
    """
    kernels = sorted((e for e in events if _is_of(backend, e.name)), key=lambda e: e.start)
    each, rest = divmod(len(kernels), calls)
    if each == 0 or rest:
        names = collections.Counter(event.name.partition("(")[0] for event in events)
        most = ", ".join(f"{n} x {name}" for name, n in names.most_common(8))
        raise NoDeviceTimeError(
            f"the trace has {len(kernels)} kernels of {backend} for {calls} calls, not the"
            f" same number for each call; its most frequent kernels are {most}"
        )
    groups = [kernels[first : first + each] for first in range(0, len(kernels), each)]
    return [(max(e.start + e.duration for e in g) - g[0].start) / 1e3 for g in groups]


def _is_of(backend: str, name: str) -> bool:
    return ("nccl" if backend == "nccl" else "jax_cxl") in name


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ops", default="all_gather,psum,psum_scatter,all_to_all")
    parser.add_argument("--sizes", type=_sizes.parse_list, default=[4096, 16384, 65536, 1 << 20])
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    jax_cxl.initialize()
    world = World(jax.process_index(), jax.process_count())
    command = results_file.command_line("benchmarks/collectives/device_time.py", sys.argv[1:])
    found = report.header(load, command) | {"results": []}
    for name in options.ops.split(","):
        for size in options.sizes:
            op = OPS[name]
            count = max(1, size // (4 * op.blocks(world.size)))
            shape = Shape(op, world.size, world.rank, count, np.dtype("float32"))
            found["results"] += _measure(world, shape)
    if world.rank == 0:
        print(results_file.text(found["results"]))
        if options.json:
            results_file.write(options.json, found)


def _measure(world: World, shape: Shape) -> list[dict]:
    buffers = backends.JaxBuffers(shape)
    runners = {
        name: runner
        for name in ("jax_cxl", "nccl")
        if (runner := backends.runner_of(name, buffers, _CALLS)) is not None
    }
    buffers.allocate()
    for runner in runners.values():
        runner.run(_CALLS)

    def run() -> None:
        world.barrier()
        for runner in runners.values():
            runner.run(_CALLS)

    events = trace(run)
    rows = []
    for name in runners:
        shortest = [min(world.gather(each)) for each in of_calls(events, name, _CALLS)]
        row = {"backend": name, "op": shape.op.name, "bytes": shape.bytes}
        rows.append({**row, "ranks": world.size, "device_us": measure.spread(shortest)})
    return rows


if __name__ == "__main__":
    main()
