"""Measures latency with more ranks than cores: benchmarks with 2 and 4 ranks take turns.

    python benchmarks/collectives/rank_scaling.py build/dev/bench_engine_benchmark --json r.json

Runs the engine's benchmark and `python -m jax_cxl bench` alternately with each number of ranks.
Prints medians over all turns, and the ratio of the time with the most ranks to the time with the
fewest. It also prints the time to hand a core from one process to another. If two ranks share a
core, each call hands every core over at least once.
"""

import argparse
import json
import os
import pathlib
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence

from jax_cxl._commands.measuring import results_file

_OPS = "psum,all_gather,psum_scatter,all_to_all"
_ENGINE_OPS = "all_reduce,all_gather,reduce_scatter,all_to_all"
_CHANGES = 20_000

Key = tuple[str, str, int, int]  # backend, operation, bytes, ranks


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0, or 1 if a result is wrong."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("engine", type=pathlib.Path, help="the engine's benchmark, built")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE")
    options = parser.parse_args(arguments)
    load = os.getloadavg()[0]
    rows: dict[Key, list[dict]] = defaultdict(list)
    header: dict = {}
    changes = []
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(options.turns):
            print(f"turn {turn + 1} of {options.turns}", file=sys.stderr)
            changes.append(_change_of_process())
            for ranks in options.ranks:
                for command in _commands(options, ranks):
                    found = _run(command, pathlib.Path(folder) / "found.json")
                    header = {name: found[name] for name in ("machine", "versions")}
                    for row in found["results"]:
                        rows[row["backend"], row["op"], row["bytes"], ranks].append(row)
    results = [_merge(of) for of in rows.values()]
    _print(results, options.ranks)
    change = round(statistics.median(changes), 3)
    print(f"a core goes from one process to another in {change} us")
    if options.json:
        header["machine"] |= {"load_before": load, "load_after": os.getloadavg()[0]}
        header["command"] = results_file.command_line(
            "python benchmarks/collectives/rank_scaling.py", arguments
        )
        header |= {"emulated": True, "change_of_process_us": change}
        found = header | {"results": results}
        results_file.write(options.json, found)
    return 1 if any(row["wrong"] for row in results) else 0


def _change_of_process() -> float:
    """Returns the microseconds that sched_yield takes to hand a core to another process."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    child = os.fork()
    start = time.perf_counter()
    for _ in range(_CHANGES):
        os.sched_yield()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    seconds = time.perf_counter() - start
    os.sched_setaffinity(0, cores)
    return seconds / (2 * _CHANGES) * 1e6


def _commands(options: argparse.Namespace, ranks: int) -> list[list[str]]:
    counts = [f"--ranks={ranks}", f"--repeats={options.repeats}"]
    engine = [str(options.engine.absolute()), f"--ops={_ENGINE_OPS}", "--max_bytes=4096"]
    bench = [sys.executable, "-m", "jax_cxl", "bench", f"--ops={_OPS}", "--sizes=64,512,4KiB"]
    return [[*engine, "--backends=endpoint", *counts], [*bench, *counts]]


def _run(command: list[str], results: pathlib.Path) -> dict:
    done = subprocess.run([*command, f"--json={results}"], capture_output=True, text=True)
    if done.returncode > 1:
        raise SystemExit(f"{shlex.join(command)} failed:\n{done.stderr}")
    return json.loads(results.read_text())


def _merge(turns: list[dict]) -> dict:
    times = {
        "min": min(row["time_us"]["min"] for row in turns),
        "median": statistics.median(row["time_us"]["median"] for row in turns),
        "max": max(row["time_us"]["max"] for row in turns),
    }
    kept = ("backend", "op", "bytes", "dtype", "ranks")
    return {name: turns[0][name] for name in kept} | {
        "time_us": times,
        "wrong": sum(row["wrong"] for row in turns),
    }


def _print(results: list[dict], ranks: list[int]) -> None:
    medians = {
        (row["backend"], row["op"], row["bytes"], row["ranks"]): row["time_us"]["median"]
        for row in results
    }
    cases = dict.fromkeys(key[:3] for key in medians)
    print(f"{'op':<15}{'bytes':>6} {'backend':<9}" + "".join(f"{n:>9}" for n in ranks) + "   (us)")
    for backend, op, size in cases:
        if not all((backend, op, size, n) in medians for n in ranks):
            continue  # A size that is rounded to other bytes.
        of = [medians[backend, op, size, n] for n in ranks]
        times = "".join(f"{median:>9.2f}" for median in of)
        print(f"{op:<15}{size:>6} {backend:<9}{times}   x {of[-1] / of[0]:.2f}")


if __name__ == "__main__":
    sys.exit(main())
