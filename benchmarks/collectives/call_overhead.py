"""Measures how much longer a collective takes than an empty custom call, in one jitted program.

    python -m jax_cxl.launch -n 2 --devices-per-process 1
        benchmarks/collectives/call_overhead.py --json o.json

The program is the same as in `python -m jax_cxl bench`: a loop of calls, each of which depends on
the previous call. It runs with each collective and with the empty call of empty_call.cc in turn,
on the same buffers. The difference of the two times is the work of jax_cxl: matching the call,
copying, and waiting for the other ranks.
"""

import argparse
import os
import pathlib
import sys

import empty_call
import jax
import numpy as np

import jax_cxl
from jax_cxl import _sizes
from jax_cxl._commands.measuring import backends, measure, report, results_file
from jax_cxl._commands.measuring.ops import OPS, Shape
from jax_cxl._commands.measuring.world import World

_TARGET = "jax_cxl_benchmark_empty"
_OPS = ("psum", "all_gather", "psum_scatter", "all_to_all")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", type=_sizes.parse_list, default="4KiB")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    jax_cxl.initialize()
    empty_call.register(_TARGET)
    world = World(jax.process_index(), jax.process_count())
    first = world.rank == 0
    rows = []
    for op in _OPS:
        for size in options.sizes:
            rows += _measure(world, op, size, options.repeats)
            if first:
                ours, empty = (row["time_us"]["median"] for row in rows[-2:])
                print(
                    f"{op:<13} {_sizes.format_size(size):>8}: {ours:7.2f} us, empty call"
                    f" {empty:5.2f} us, overhead {ours - empty:6.2f} us"
                )
    if first and options.json:
        command = results_file.command_line("benchmarks/collectives/call_overhead.py", sys.argv[1:])
        results_file.write(options.json, report.header(load, command) | {"results": rows})


def _measure(world: World, name: str, size: int, repeats: int) -> list[dict]:
    """Returns a row of results for the collective `name`, and one for the empty call."""
    op = OPS[name]
    # Integers, because any bits that an empty call leaves in its result are a valid integer.
    dtype = np.dtype("int32")
    count = size // (op.blocks(world.size) * dtype.itemsize)
    shape = Shape(op, world.size, world.rank, count, dtype)
    buffers = backends.JaxBuffers(shape)
    out = jax.ShapeDtypeStruct((op.blocks_out(world.size) * count,), dtype)
    ours = backends.runner_of("jax_cxl", buffers)
    call = jax.ffi.ffi_call(_TARGET, out, has_side_effect=True)
    empty = backends.JaxRunner(call, buffers)
    assert ours is not None
    buffers.allocate()
    runners = {"jax_cxl": ours, "empty": empty}
    calls = {backend: measure.enough(world, runner) for backend, runner in runners.items()}
    times: dict[str, list[float]] = {backend: [] for backend in runners}
    for _ in range(repeats):
        for backend, runner in runners.items():
            times[backend].append(measure.sample(world, runner, calls[backend]) * 1e6)
    return [
        {
            "backend": backend,
            "op": name,
            "bytes": shape.bytes,
            "dtype": dtype.name,
            "ranks": world.size,
            "time_us": measure.spread(of),
        }
        for backend, of in times.items()
    ]


if __name__ == "__main__":
    main()
