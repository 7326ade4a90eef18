"""Times collectives over all devices in levels and as one call, for `python -m jax_cxl tune`.

benchmarks/collectives/levels.py compares more ways. The ways take turns, so that a slow moment of
the machine affects all of them.
"""

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

AXES = ("host", "gpu")


def collective(module: Any, name: str, ranks: int, **options: Any) -> Callable[[Any], Any]:
    """Returns a function that runs a collective of jax_cxl or jax.lax on a vector."""
    blocks = (ranks, -1) if name in ("psum_scatter", "all_to_all") else (-1,)
    arguments = (0, 0) if name == "all_to_all" else ()
    return lambda x: getattr(module, name)(x.reshape(blocks), AXES, *arguments, **options)


def flat_and_levels(name: str, ranks: int, _: int) -> dict[str, Callable[[Any], Any]]:
    """Returns two ways to run a collective: as one call, and in levels."""
    ways = {"flat": False, "levels": True}
    return {way: collective(jax_cxl, name, ranks, levels=on) for way, on in ways.items()}


def rows(
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
    mesh = jax_cxl.make_mesh((world.size, jax.local_device_count()), AXES)
    ranks, spec = mesh.size, jax.P(AXES)
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


def main() -> None:
    """Runs in the processes of a job that `tune` starts."""
    names, sizes, seconds, path = sys.argv[1:]
    load = os.getloadavg()[0]
    jax_cxl.initialize()
    measured = rows(flat_and_levels, names.split(","), _sizes.parse_list(sizes), float(seconds))
    found = {"results": list(measured), "machine": report.machine(load)}
    if jax.process_index() == 0:
        results_file.write(pathlib.Path(path), found)


if __name__ == "__main__":
    main()
