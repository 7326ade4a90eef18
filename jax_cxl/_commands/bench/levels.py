"""Times collectives over all devices in levels, as one call, and as the table chooses.

The measured ways take turns, so that a slow moment of the machine affects all of them. `bytes`
counts the bytes that a process writes to the pool in one collective, from `jax_cxl.stats()`. The
way `copies` is a bound for collectives whose operand and result have the same size: the devices
of a process read and write the same number of bytes, by plain copies between their buffers. The
way `lax` is the collective of `jax.lax` over the same axes, by Gloo or NCCL.
"""

import argparse
import os
import pathlib
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import jax_cxl
from jax_cxl import _sizes
from jax_cxl._commands.bench import report, results_file

AXES = ("host", "gpu")
WAYS = {"flat": False, "levels": True, "table": None}
COPIES = "copies"
LAX = "lax"


def operations(ranks: int) -> dict[str, tuple[Callable, Callable]]:
    """Returns for each operation: the call, and the elements of the operand for n elements.

    A call takes the module of the collective (jax_cxl or jax.lax), the operand and options.
    """
    whole, part = (lambda n: n), (lambda n: max(n // ranks, 1))

    def psum_scatter(module: Any, x: Any, **options: Any) -> Any:
        return module.psum_scatter(x.reshape(ranks, -1), AXES, **options)

    def all_to_all(module: Any, x: Any, **options: Any) -> Any:
        return module.all_to_all(x.reshape(ranks, -1), AXES, 0, 0, **options)

    return {
        "psum": (lambda module, x, **options: module.psum(x, AXES, **options), whole),
        "all_gather": (lambda module, x, **options: module.all_gather(x, AXES, **options), part),
        "psum_scatter": (psum_scatter, lambda n: max(n, ranks)),
        "all_to_all": (all_to_all, lambda n: max(n, ranks)),
        "broadcast": (lambda module, x, **options: module.broadcast(x, AXES, **options), whole),
    }


def copies(x: Any) -> Any:
    """Reads and writes the bytes of x by a plain copy, without the pool."""
    return jax_cxl.all_to_all(x, AXES[1], 0, 0, tiled=True, levels=True)


def programs_of(name: str, n: int, mesh: Any, ways: list[str]) -> dict[str, Callable]:
    """Returns a compiled program for each way to run an operation on n elements."""
    call, _ = operations(mesh.size)[name]
    functions: dict[str, Callable] = {
        way: lambda v, levels=levels: call(jax_cxl, v, levels=levels)
        for way, levels in WAYS.items()
        if way in ways
    }
    # jax.lax.broadcast is not a collective.
    if LAX in ways and name != "broadcast":
        functions[LAX] = lambda v: call(jax.lax, v)
    if COPIES in ways and name in ("psum", "all_to_all", "broadcast") and n % mesh.size == 0:
        functions[COPIES] = copies
    specs: dict[str, Any] = {"in_specs": jax.P(AXES), "out_specs": jax.P(AXES), "check_vma": False}
    return {
        way: jax.jit(jax.shard_map(function, mesh=mesh, **specs))
        for way, function in functions.items()
    }


def measure(programs: dict[str, Callable], x: Any, seconds: float) -> dict[str, Any]:
    """Returns time and bytes of each program; the programs take turns for some seconds."""
    for program in programs.values():
        jax.block_until_ready(program(x))
    start = time.perf_counter()
    jax.block_until_ready(programs["flat"](x))
    once = max(time.perf_counter() - start, 1e-5)
    # The same on all processes: they run the same collectives.
    mine = least_of_all(int(min(max(seconds / (len(programs) * once), 5), 300)))
    times: dict[str, list[float]] = {name: [] for name in programs}
    moved = {}
    for _ in range(mine):
        for name, program in programs.items():
            before = jax_cxl.stats().bytes_published
            start = time.perf_counter()
            jax.block_until_ready(program(x))
            times[name].append((time.perf_counter() - start) * 1e6)
            moved[name] = jax_cxl.stats().bytes_published - before
    return {
        name: {
            "us": round(float(np.median(taken)), 1),
            "quartiles": [round(float(q), 1) for q in np.percentile(taken, (25, 75))],
            "bytes": moved[name],
        }
        for name, taken in times.items()
    }


def least_of_all(value: int) -> int:
    """Returns the least value of all processes."""
    mesh = jax_cxl.make_mesh((jax.device_count(),), ("i",))
    sharding = jax.NamedSharding(mesh, jax.P("i"))
    x = jax.make_array_from_callback(
        (jax.device_count(),), sharding, lambda _: np.full(1, value, np.int32)
    )
    least = jax.shard_map(
        lambda v: jax_cxl.pmin(v, "i"), mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P()
    )
    return int(np.asarray(jax.jit(least)(x).addressable_shards[0].data)[0])


def _ones(n: int, sharding: Any) -> jax.Array:
    """Returns an array with n elements on each device."""
    shape = (sharding.mesh.size * n,)
    return jax.make_array_from_callback(shape, sharding, lambda _: np.ones(n, np.float32))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--operations", default="psum")
    parser.add_argument("--sizes", default="4,256,4KiB,32KiB,128KiB,512KiB,1MiB,4MiB,16MiB,64MiB")
    parser.add_argument(
        "--ways",
        default=",".join((*WAYS, COPIES)),
        help=f"flat, and others of {', '.join((*WAYS, COPIES, LAX))} (default: %(default)s)",
    )
    parser.add_argument(
        "--separate_hosts",
        action="store_true",
        help="make NCCL believe that each process has a host of its own: NVLink inside a process,"
        " the network between processes",
    )
    parser.add_argument("--seconds", type=float, default=3, help="for each row")
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    ways = options.ways.split(",")
    load = os.getloadavg()[0]
    jax_cxl.initialize()
    if options.separate_hosts:
        # NCCL reads it when the first communicator is made.
        os.environ["NCCL_HOSTID"] = f"host-{jax.process_index()}"
    shape = (jax.process_count(), jax.local_device_count())
    mesh = jax_cxl.make_mesh(shape, AXES)
    sharding = jax.NamedSharding(mesh, jax.P(AXES))
    rows = []
    for name in options.operations.split(","):
        _, elements = operations(mesh.size)[name]
        for num_bytes in _sizes.parse_list(options.sizes):
            n = elements(num_bytes // 4)
            x = _ones(n, sharding)
            programs = programs_of(name, n, mesh, ways)
            row = {"operation": name, "size": num_bytes, **measure(programs, x, options.seconds)}
            rows.append(row)
            if jax.process_index() == 0:
                cells = [
                    f"{way} {row[way]['us']:10.0f} us ({row['flat']['us'] / row[way]['us']:5.2f}x,"
                    f" {row[way]['bytes']} B)"
                    for way in programs
                ]
                print(f"{name:13}{num_bytes:>10} B  {'  '.join(cells)}", flush=True)
    if options.json and jax.process_index() == 0:
        command = results_file.command_line(
            f"python -m jax_cxl.launch -n {shape[0]} --devices-per-process {shape[1]}"
            " benchmarks/collectives/levels.py",
            sys.argv[1:],
        )
        results_file.write(options.json, report.header(load, command) | {"results": rows})


if __name__ == "__main__":
    main()
