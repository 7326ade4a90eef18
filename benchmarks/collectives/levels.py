"""Times collectives over all devices: in levels, as one call, and as the tuning table chooses.

    python -m jax_cxl.launch -n 2 --devices-per-process 4
        benchmarks/collectives/levels.py --json FILE.json

`--table FILE` writes a tuning table with the sizes from which levels are faster. docs/levels.md
has results.

`--ways` chooses the ways to run a collective. `flat` is one call, `levels` works in levels, and
`table` is whichever of these two the tuning table chooses. `lax` is the collective of `jax.lax`
over the same axes, by Gloo. `copies` is a bound for collectives whose operand and result
have the same size: the devices of a process read and write as many bytes as in the collective, but
by plain copies between their buffers.

`bytes` counts the bytes that a process writes to the pool in one collective, from
`jax_cxl.stats()`.
"""

import argparse
import os
import pathlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

import jax_cxl
from jax_cxl import _sizes
from jax_cxl._commands.measuring import report, results_file
from jax_cxl._commands.measuring.world import World
from jax_cxl._job import configuration, tuning_table
from jax_cxl._lowering.contract import Op
from jax_cxl._lowering.levels import choice

_WAYS = ("flat", "levels", "table", "copies", "lax")
_AXES = ("host", "cpu")
# In a tuning table, levels have to be faster by this part of their time.
_MARGIN = 0.03
_OPERATIONS = {
    "psum": Op.ALL_REDUCE,
    "psum_scatter": Op.REDUCE_SCATTER,
    "all_gather": Op.ALL_GATHER,
    "all_to_all": Op.ALL_TO_ALL,
    "broadcast": Op.BROADCAST,
}


def _collective(module: Any, name: str, ranks: int, **options: Any) -> Callable[[Any], Any]:
    """Returns a function that runs a collective of jax_cxl or jax.lax on a vector."""
    blocks = (ranks, -1) if name in ("psum_scatter", "all_to_all") else (-1,)
    arguments = (0, 0) if name == "all_to_all" else ()
    return lambda x: getattr(module, name)(x.reshape(blocks), _AXES, *arguments, **options)


def _copies(x: Any) -> Any:
    """Moves the bytes of x by plain copies between the devices of a process, without the pool."""
    return jax_cxl.all_to_all(x, _AXES[1], 0, 0, tiled=True, levels=True)


def _ways(name: str, ranks: int, n: int) -> dict[str, Callable]:
    """Returns functions that run the collective `name` on `n` elements, by the names in `_WAYS`."""
    found = {
        "flat": _collective(jax_cxl, name, ranks, levels=False),
        "levels": _collective(jax_cxl, name, ranks, levels=True),
        "table": _collective(jax_cxl, name, ranks),
    }
    # jax.lax.broadcast is not a collective.
    if name != "broadcast":
        found["lax"] = _collective(jax.lax, name, ranks)
    if name in ("psum", "all_to_all", "broadcast") and n % ranks == 0:
        found["copies"] = _copies
    return found


def _rows(
    ways: Callable[[str, int, int], dict[str, Callable[[Any], Any]]],
    names: Sequence[str],
    sizes: Sequence[int],
    seconds: float,
) -> Iterator[dict[str, Any]]:
    """Yields a row for each collective and size in bytes.

    `ways` takes a collective, the number of ranks and the elements of the operand. It returns a
    function for each way to run the collective. One of the ways has the name "flat".
    """
    world = World(jax.process_index(), jax.process_count())
    mesh = jax_cxl.make_mesh((world.size, jax.local_device_count()), _AXES)
    ranks, spec = mesh.size, jax.P(_AXES)
    for name in names:
        for size in sizes:
            n = size // 4
            if name == "all_gather":
                n = max(n // ranks, 1)
            elif name in ("psum_scatter", "all_to_all"):
                n = max(n, ranks)
            ones = np.ones(jax.local_device_count() * n, np.float32)
            x = jax.make_array_from_process_local_data(jax.NamedSharding(mesh, spec), ones)
            programs = {
                way: jax.jit(
                    jax.shard_map(run, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
                )
                for way, run in ways(name, ranks, n).items()
            }
            yield {"operation": name, "size": size, **_measure(world, programs, x, seconds)}


def _measure(
    world: World, programs: Mapping[str, Callable], x: Any, seconds: float
) -> dict[str, dict[str, Any]]:
    """Returns the times of each program, and the bytes that this process writes to the pool."""
    for program in programs.values():
        jax.block_until_ready(program(x))
    start = time.perf_counter()
    jax.block_until_ready(programs["flat"](x))
    # All processes must repeat the programs the same number of times, because they take part in the
    # same collectives. So all compute the number from the time of the slowest process.
    once = max(world.gather(time.perf_counter() - start))
    times: dict[str, list[float]] = {way: [] for way in programs}
    moved = {}
    for _ in range(int(min(max(seconds / (len(programs) * once), 5), 300))):
        for way, program in programs.items():
            before = jax_cxl.stats().bytes_published
            start = time.perf_counter()
            jax.block_until_ready(program(x))
            times[way].append((time.perf_counter() - start) * 1e6)
            moved[way] = jax_cxl.stats().bytes_published - before
    return {
        way: {
            "us": round(float(np.median(taken)), 1),
            "quartiles": [round(float(q), 1) for q in np.percentile(taken, (25, 75))],
            "bytes": moved[way],
        }
        for way, taken in times.items()
    }


def limit(times: Mapping[int, tuple[float, float]]) -> int:
    """Returns the bytes from which a collective runs in levels.

    `times` has the times of one call and of levels, by bytes. At the limit and at all larger sizes,
    one call takes longer by at least `_MARGIN` of the time in levels.
    """
    least = tuning_table.NEVER
    for size, (flat, in_levels) in sorted(times.items(), reverse=True):
        if flat < in_levels * (1 + _MARGIN):
            break
        least = size
    return least


def _write_table(path: pathlib.Path, command: str, rows: Sequence[dict[str, Any]]) -> None:
    """Writes the present tuning table with the sizes from which levels are faster in `rows`."""
    tuning = tuning_table.table(tuning_table.load(configuration.from_environment().tuning))
    times: dict[str, dict[int, tuple[float, float]]] = {}
    for row in rows:
        found = row["flat"]["us"], row["levels"]["us"]
        times.setdefault(row["operation"], {})[row["size"]] = found
    tuning |= {choice.field(_OPERATIONS[name]): limit(found) for name, found in times.items()}
    table = {"command": command, "emulated": True, "tuning": tuning, "measured": rows}
    results_file.write(path, table)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--operations", default="psum", help=f"of {', '.join(_OPERATIONS)} (default: psum)"
    )
    parser.add_argument("--sizes", default="4,256,4KiB,32KiB,128KiB,512KiB,1MiB,4MiB,16MiB,64MiB")
    parser.add_argument(
        "--ways",
        default="flat,levels,table,copies",
        help=f"flat, and others of {', '.join(_WAYS)} (default: %(default)s)",
    )
    parser.add_argument("--seconds", type=float, default=3, help="for each row")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--table", type=pathlib.Path, help="write a tuning table with levels")
    options = parser.parse_args()
    chosen = options.ways.split(",")
    if options.table and not {"flat", "levels"} <= set(chosen):
        parser.error("--table compares flat with levels: name both in --ways")
    load = os.getloadavg()[0]
    jax_cxl.initialize()

    def ways(*arguments: Any) -> dict[str, Callable]:
        found = _ways(*arguments)
        return {way: found[way] for way in _WAYS if way in found and way in chosen}

    first = jax.process_index() == 0
    rows = []
    names, sizes = options.operations.split(","), _sizes.parse_list(options.sizes)
    for row in _rows(ways, names, sizes, options.seconds):
        rows.append(row)
        if first:
            cells = [
                f"{way} {row[way]['us']:10.0f} us ({row['flat']['us'] / row[way]['us']:5.2f}x,"
                f" {row[way]['bytes']} B)"
                for way in _WAYS
                if way in row
            ]
            print(f"{row['operation']:13}{row['size']:>10} B  {'  '.join(cells)}", flush=True)
    if not first:
        return
    command = results_file.command_line(
        f"python -m jax_cxl.launch -n {jax.process_count()} --devices-per-process"
        f" {jax.local_device_count()} benchmarks/collectives/levels.py",
        sys.argv[1:],
    )
    if options.json:
        results_file.write(options.json, report.header(load, command) | {"results": rows})
    if options.table:
        _write_table(options.table, command, rows)


if __name__ == "__main__":
    main()
