"""Kills processes at random instants, and checks the errors and results of the others.

    python -m lab.kills.kill_sweep --count 500 --json FILE

Each job has three or four processes (tests/programs/failures/killed.py). One of them dies in one of
these stages: while it compiles, while it shuts down and initializes again, or while it regroups. In
jobs of the stage `none` no process dies. These jobs show that any number of jobs can follow each
other. A job is right if

* every survivor gets an error that names a lost rank,
* every survivor then continues with right values, except in the stage `shutdown`,
* the job ends in time,
* it leaves no process, and no file in /dev/shm. One file is allowed: a pool whose creator died
  before the other processes knew of the pool. The next job removes this file.

The exit status is 1 if a job is not right. Its output is then printed with its seed.
"""

import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import random
import re
import statistics
import subprocess
import sys
import uuid
from collections.abc import Sequence
from typing import Any

import job

from jax_cxl import _core
from jax_cxl._commands.measuring import report, results_file

_PROCESSES = {"none": 3, "compile": 3, "shutdown": 3, "regroup": 4}
# About how many seconds each stage takes. The process dies at some instant within this time.
_SECONDS = {"none": 0.0, "compile": 0.6, "shutdown": 0.6, "regroup": 0.3}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the jobs that a command line describes, by default the command line of this process.

    Returns:
      The exit status.
    """
    if arguments is None:
        arguments = sys.argv[1:]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--stages", default=",".join(_PROCESSES), help="default: %(default)s")
    parser.add_argument("--count", type=int, default=20, help="jobs of each stage (default: 20)")
    parser.add_argument("--first", type=int, default=0, help="first seed (default: 0)")
    parser.add_argument("--jobs", type=int, default=1, help="at the same time (default: 1)")
    parser.add_argument("--limit", type=float, default=90, help="seconds that a job may take")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="file for the summary")
    options = parser.parse_args(arguments)
    stages = options.stages.split(",")
    if unknown := set(stages) - set(_PROCESSES):
        parser.error(f"--stages: {sorted(unknown)[0]!r} is not one of {', '.join(_PROCESSES)}")
    load, rows = os.getloadavg()[0], []
    for stage in stages:
        rows.append(_sweep(stage, options))
        print(json.dumps(rows[-1]), flush=True)
        if options.json:
            command = results_file.command_line("python -m lab.kills.kill_sweep", arguments)
            header = report.header(load, command) | {"emulated": True}
            results_file.write(options.json, header | {"results": rows})
    return int(any(row["right"] < row["jobs"] for row in rows))


def _sweep(stage: str, options: argparse.Namespace) -> dict[str, Any]:
    """Runs the jobs of a stage; returns how many were right, and how soon a death gave errors."""
    verdicts: collections.Counter[str] = collections.Counter(right=0)
    seconds: list[float] = []
    seeds = range(options.first, options.first + options.count)
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for seed, (verdict, output, times) in zip(
            seeds, pool.map(lambda seed: _run(stage, seed, options.limit), seeds), strict=True
        ):
            verdicts[verdict] += 1
            seconds += times
            if verdict != "right":
                print(f"{stage}, seed {seed}: {verdict}\n{output}", flush=True)
    return {
        "stage": stage,
        "jobs": len(seeds),
        **verdicts,
        "errors with times": len(seconds),
        "milliseconds from death to error, median": _milliseconds(seconds, 0.5),
        "99th percentile": _milliseconds(seconds, 0.99),
        "maximum": _milliseconds(seconds, 1.0),
    }


def _run(stage: str, seed: int, limit: float) -> tuple[str, str, list[float]]:
    """Runs a job; returns the verdict, the output, and seconds from the death to each error."""
    rng = random.Random(f"{stage} {seed}")
    processes = _PROCESSES[stage]
    first, victim = rng.sample(range(processes), 2)
    name = f"kill-{uuid.uuid4().hex[:12]}"
    arguments = (f"--stage={stage}", f"--victim={victim}", f"--first={first}")
    arguments += (f"--after={rng.random() * _SECONDS[stage]:.6f}", f"--pool=shm:{name}")
    with job.start(
        "failures/killed.py", *arguments, processes=processes, launcher=("--go-on",)
    ) as running:
        try:
            stdout, stderr = running.communicate(timeout=limit)
            hangs = False
        except subprocess.TimeoutExpired:
            running.terminate()
            stdout, stderr = running.communicate()
            hangs = True
    output = " ".join(arguments) + "\n" + stdout + stderr
    lost = {"none": set(), "regroup": {first, victim}}.get(stage, {victim})
    if hangs:
        return "hangs", output, []
    if "AssertionError" in output:
        return "wrong value", output, []
    if running.left_behind:
        return "leaves a process", f"{output}\n{running.left_behind} processes are left", []
    if job.pool_files(name):
        _core.sweep_leftovers()  # As the next job does.
        if left := job.pool_files(name):
            return "leaves a file", f"{output}\n{left}", []
    for rank in set(range(processes)) - lost:
        says = rf"^\[{rank}\] done" if stage != "shutdown" else _named(rank, victim)
        if not re.search(says, stdout, re.MULTILINE):
            return "no named error" if stage == "shutdown" else "does not continue", output, []
    return "right", output, _times(stdout, victim)


def _named(rank: int, victim: int) -> str:
    """Returns a pattern for the line in which a rank reports an error that names the victim."""
    return rf"^\[{rank}\] caught (PeerLost|NotInitialized)Error: .*(rank|process) {victim}\b"


def _times(stdout: str, victim: int) -> list[float]:
    """Returns the seconds from the victim's death to each error that names the victim."""
    deaths = re.findall(r"dies at ([0-9.]+)", stdout)
    errors = re.findall(
        rf"(?:lost|caught .*) rank {victim}\b.* at ([0-9.]+)$", stdout, re.MULTILINE
    )
    if not deaths:
        return []
    return [float(instant) - float(deaths[-1]) for instant in errors]


def _milliseconds(seconds: list[float], quantile: float) -> float | None:
    if len(seconds) < 2:
        return round(1000 * seconds[0], 1) if seconds else None
    if quantile == 1.0:
        return round(1000 * max(seconds), 1)
    return round(1000 * statistics.quantiles(seconds, n=100)[round(100 * quantile) - 1], 1)


if __name__ == "__main__":
    sys.exit(main())
