"""Compares the engine (without JAX) and MPI libraries: they run the same loop in turn.

    python benchmarks/collectives/compare_mpi.py build/dev/bench_engine_benchmark --json mpi.json

Builds mpi_collectives.c with the compiler of each installed MPI library (Debian's Open MPI and
MPICH). Runs the engine's benchmark and each MPI library alternately, `--turns` times, and prints
medians. In each turn every program takes `--repeats` samples of every operation and size.
"""

import argparse
import json
import os
import pathlib
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Sequence

from jax_cxl._commands.measuring import results_file

_SOURCE = pathlib.Path(__file__).parent / "mpi_collectives.c"
# For each MPI library: its compiler, and its launcher. The launchers do not bind ranks to cores,
# and neither does `python -m jax_cxl.launch`.
_MPIS = {
    "openmpi": (
        "mpicc.openmpi",
        "mpirun.openmpi --allow-run-as-root --oversubscribe --bind-to none -n {ranks}",
    ),
    "mpich": ("mpicc.mpich", "mpirun.mpich -bind-to none -n {ranks}"),
}
_BUS = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "broadcast": lambda n: 1.0,
    "reduce": lambda n: 1.0,
}

Key = tuple[str, str, int]  # backend, operation, bytes
Samples = dict[Key, list[float]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0, or 1 if a result is wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("engine", type=pathlib.Path, help="the engine's benchmark, built")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--max-bytes", type=int, default=64 << 20)
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE")
    options = parser.parse_args(arguments)
    mpis = {name: tools for name, tools in _MPIS.items() if shutil.which(tools[0])}
    if not mpis:
        parser.error(f"none of {', '.join(tools[0] for tools in _MPIS.values())} is installed")

    load = os.getloadavg()[0]
    samples: Samples = defaultdict(list)
    bounds: Samples = defaultdict(list)
    wrong: Counter[Key] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        programs = {name: _build(name, tools[0], folder) for name, tools in mpis.items()}
        for turn in range(options.turns):
            print(f"turn {turn + 1} of {options.turns}", file=sys.stderr)
            machine = _run_engine(options, folder, samples, bounds, wrong)
            for name, program in programs.items():
                command = mpis[name][1].format(ranks=options.ranks).split()
                command += [program, str(options.max_bytes), str(options.repeats)]
                _run_mpi(name, command, samples, wrong)
    machine |= {"load_before": load, "load_after": os.getloadavg()[0]}
    _print(samples, bounds)
    if options.json:
        results = [
            _row(key, samples[key], bounds.get(key), wrong[key], options.ranks) for key in samples
        ]
        command = results_file.command_line(
            "python benchmarks/collectives/compare_mpi.py", arguments or sys.argv[1:]
        )
        versions = {name: _version(tools[1]) for name, tools in mpis.items()}
        header = {"machine": machine, "command": command, "versions": versions, "emulated": True}
        results_file.write(options.json, header | {"results": results})
    return 1 if wrong.total() else 0


def _build(name: str, compiler: str, folder: str) -> str:
    program = f"{folder}/{name}"
    subprocess.run([compiler, "-O3", "-std=c11", str(_SOURCE), "-o", program], check=True)
    return program


def _version(launcher: str) -> str:
    text = subprocess.run(
        [launcher.split()[0], "--version"], check=True, capture_output=True, text=True
    ).stdout
    return " ".join(text.split("\n")[0 if "(" in text.split("\n")[0] else 1].split())


def _run_engine(
    options: argparse.Namespace,
    folder: str,
    samples: Samples,
    bounds: Samples,
    wrong: Counter[Key],
) -> dict:
    results = pathlib.Path(folder) / "engine.json"
    command = [
        str(options.engine.absolute()),
        f"--ranks={options.ranks}",
        f"--max_bytes={options.max_bytes}",
        f"--repeats={options.repeats}",
        "--backends=endpoint",
        f"--json={results}",
    ]
    if subprocess.run(command, capture_output=True).returncode > 1:
        raise SystemExit(f"{shlex.join(command)} failed")
    parsed = json.loads(results.read_text())
    for row in parsed["results"]:
        key = (row["backend"], row["op"], row["bytes"])
        samples[key] += row["samples_us"]
        bounds[key].append(row["bound_share"] * row["time_us"]["median"])
        wrong[key] += row["wrong"]
    return parsed["machine"]


def _run_mpi(name: str, command: list[str], samples: Samples, wrong: Counter[Key]) -> None:
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    for line in output.splitlines():
        op, size, *times, errors = line.split()
        samples[(name, op, int(size))] += [float(time) for time in times]
        wrong[(name, op, int(size))] += int(errors)


def _row(key: Key, times: list[float], bounds: list[float] | None, wrong: int, ranks: int) -> dict:
    backend, op, size = key
    median = statistics.median(times)
    algbw = size / median / 1e3
    row = {
        "backend": backend,
        "op": op,
        "bytes": size,
        "dtype": "float32",
        "ranks": ranks,
        "time_us": {"min": min(times), "median": median, "max": max(times)},
        "algbw_gbps": round(algbw, 6),
        "busbw_gbps": round(algbw * _BUS.get(op, lambda n: (n - 1) / n)(ranks), 6),
        "wrong": wrong,
    }
    if bounds:
        row["bound_share"] = round(statistics.median(bounds) / median, 6)
    return row


def _print(samples: Samples, bounds: Samples) -> None:
    backends = list(dict.fromkeys(key[0] for key in samples))
    print(f"{'op':<15}{'bytes':>10}" + "".join(f"{name:>12}" for name in backends) + "   (us)")
    for op, size in dict.fromkeys(key[1:] for key in samples):
        medians = [statistics.median(samples[(name, op, size)]) for name in backends]
        share = statistics.median(bounds[("endpoint", op, size)]) / medians[0]
        print(
            f"{op:<15}{size:>10}"
            + "".join(f"{median:>12.2f}" for median in medians)
            + f"   bound share {share:.0%}"
        )


if __name__ == "__main__":
    sys.exit(main())
