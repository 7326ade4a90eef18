"""Measures the start of a job: from the launcher's command to the first result.

    python benchmarks/models/start.py --repeats=9 --json start.json

Three programs take turns. The launcher starts each on two processes. Each sums one array:

    gloo        `jax.lax.psum`, between CPUs through JAX's Gloo, between GPUs with NCCL; the program
                does not import jax_cxl
    pool        `jax_cxl.psum`
    takeover    the program of gloo, whose collectives go through the pool with
                `JAX_CXL_REPLACE_COLLECTIVES=1`

The start has parts, such as `import jax`, `initialize` and `compile`. A part ends when both ranks
have finished it. A row of the results has the median time of each part over the turns, in ms, and
the median ratio of the whole time to gloo's in the same turn.
Before the first turn, one job of each program runs without being measured. It compiles the sources
of jax_cxl to bytecode, as pip does at the installation.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
from typing import Any

_PROGRAMS = ("gloo", "pool", "takeover")
_STARTED = "START_BENCHMARK_AT"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=9, help="turns (default: 9)")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE")
    parser.add_argument("--program", choices=_PROGRAMS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.program:
        _sum(options.program)
        return 0
    from jax_cxl._commands.measuring import report, results_file

    load = os.getloadavg()[0]
    # With this variable, each process would compile the checkout's sources of jax_cxl again. JAX
    # would have an advantage: it is installed, so it has bytecode.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    for name in _PROGRAMS:
        _start(name)
    turns: dict[str, list[dict[str, float]]] = {name: [] for name in _PROGRAMS}
    for _ in range(options.repeats):
        for name in _PROGRAMS:
            turns[name].append(_start(name))
    rows = []
    for name in _PROGRAMS:
        parts = {
            part: round(statistics.median(turn[part] for turn in turns[name]), 1)
            for part in turns[name][0]
        }
        ratios = [
            turn["whole"] / plain["whole"]
            for turn, plain in zip(turns[name], turns["gloo"], strict=True)
        ]
        rows.append(
            {
                "program": name,
                "ms": parts,
                "over_gloo": {
                    "min": round(min(ratios), 3),
                    "median": round(statistics.median(ratios), 3),
                    "max": round(max(ratios), 3),
                },
            }
        )
        print(json.dumps(rows[-1]), flush=True)
    if options.json:
        command = results_file.command_line("benchmarks/models/start.py", sys.argv[1:])
        results_file.write(options.json, report.header(load, command) | {"results": rows})
    return 0


def _start(program: str) -> dict[str, float]:
    """Runs a job of one of the three programs; returns the milliseconds of the start's parts."""
    environment = {**os.environ, _STARTED: str(time.time())}
    environment.pop("JAX_CXL_REPLACE_COLLECTIVES", None)
    if program == "takeover":
        environment["JAX_CXL_REPLACE_COLLECTIVES"] = "1"
    start = time.time()
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "jax_cxl.launch", "-n", "2", "--devices-per-process", "1"),
            *("--no-prefix", __file__, "--program", program),
        ],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    end = time.time()
    lines = [line[5:] for line in ended.stdout.splitlines() if line.startswith("times")]
    if ended.returncode or len(lines) != 2:
        sys.exit(f"the job failed:\n{ended.stdout}{ended.stderr}")
    marks: list[dict[str, float]] = [json.loads(line) for line in lines]
    parts = {}
    before = start
    for mark in marks[0]:
        at = max(of_rank[mark] for of_rank in marks)
        parts[mark] = 1e3 * (at - before)
        before = at
    return {**parts, "ends": 1e3 * (end - before), "whole": 1e3 * (end - start)}


def _sum(program: str) -> None:
    """Runs the program of a rank, and prints when each part was done."""
    marks = {"python and launcher": time.time()}

    def done(part: str) -> None:
        marks[part] = time.time()

    import jax

    done("import jax")
    psum: Any = jax.lax.psum
    if program == "pool":
        import jax_cxl

        psum = jax_cxl.psum
        done("import jax_cxl")
        jax_cxl.initialize()
    else:
        done("import jax_cxl")
        jax.distributed.initialize()
    jax.devices()
    done("initialize")
    mesh = jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.P("i")
    mapped = jax.shard_map(lambda x: psum(x, "i"), mesh=mesh, in_specs=spec, out_specs=jax.P())
    x = jax.make_array_from_callback(
        (2,), jax.NamedSharding(mesh, spec), lambda index: jax.numpy.arange(2.0)[index]
    )
    compiled = jax.jit(mapped).lower(x).compile()
    done("compile")
    total = float(compiled(x)[0])
    done("first result")
    assert total == 1.0, total
    sys.stdout.write("times" + json.dumps(marks) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
