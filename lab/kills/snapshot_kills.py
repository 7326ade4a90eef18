"""Kills processes of jobs that train on snapshots, and checks that their losses do not change.

    python -m lab.kills.snapshot_kills --kills 1000 --json FILE

tests/programs/snapshots/killed.py trains on `--processes` processes. They are killed one at a time,
half of them in the middle of a save. After each death the launcher starts all processes again, and
they restore the last snapshot. With `--whole` the whole job, including its launcher, is killed each
time and started again. A job is right if its losses are those of an undisturbed job to the last
bit, and if it lost at most one step for which `save` had returned. The exit status is 1 if a job is
not right.
"""

import argparse
import json
import os
import pathlib
import random
import re
import statistics
import subprocess
import sys
import time
import uuid
from typing import Any

import job

from jax_cxl._commands.measuring import report, results_file

_PROGRAM = "snapshots/killed.py"


def main() -> int:
    """Runs the jobs; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=20, help="deaths in all (default: 20)")
    parser.add_argument("--per-job", type=int, default=25, help="deaths in a job (default: 25)")
    parser.add_argument("--processes", type=int, default=2, help="of a job (default: 2)")
    parser.add_argument("--seed", type=int, default=0, help="of the first job (default: 0)")
    parser.add_argument("--parity", type=int, default=0, help="1: three paths, one of parity")
    parser.add_argument("--whole", action="store_true", help="kill whole jobs")
    parser.add_argument(
        "--incoherent", action="store_true", help="emulate caches, see docs/protocol.md"
    )
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="file for the summary")
    options = parser.parse_args()
    load, began = os.getloadavg()[0], time.monotonic()
    found: dict[str, Any] = {"kills": 0, "jobs": 0, "right": 0}
    events: list[dict[str, float]] = []
    for seed in range(options.seed, options.seed + -(-options.kills // options.per_job)):
        problem, kills, of_job = _run(seed, options)
        found["jobs"] += 1
        found["right"] += not problem
        found["kills"] += kills
        events += of_job
        if problem:
            print(f"seed {seed}: {problem}", flush=True)
    found |= {"steps lost, at most": max((event["lost"] for event in events), default=None)}
    events = [event for event in events if event.keys() >= {"error", "stepped"}]
    found |= {"seconds": _phases(events)} if events else {}
    found["minutes"] = round((time.monotonic() - began) / 60, 1)
    print(json.dumps(found), flush=True)
    if options.json:
        command = results_file.command_line("python -m lab.kills.snapshot_kills", sys.argv[1:])
        header = report.header(load, command) | {"emulated": True}
        results_file.write(options.json, header | {"results": [found]})
    return int(found["right"] < found["jobs"])


def _phases(events: list[dict[str, float]]) -> dict[str, list[float]]:
    """Returns, for each phase after a death, its median and its longest time in seconds."""
    moments = ("died", "error", "restored", "stepped")
    names = ("until the error", "start again and restore", "compile and step")
    seconds = {
        name: [event[after] - event[before] for event in events]
        for name, before, after in zip(names, moments, moments[1:], strict=False)
    }
    seconds["in all"] = [event["stepped"] - event["died"] for event in events]
    return {
        name: [round(statistics.median(of), 3), round(max(of), 3)] for name, of in seconds.items()
    }


def _run(seed: int, options: argparse.Namespace) -> tuple[str, int, list[dict[str, float]]]:
    """Runs a job, and compares its losses with those of an undisturbed job.

    Returns:
      What is wrong, or ""; how many processes were killed; what is known of each death.
    """
    name = f"kills-{uuid.uuid4().hex[:12]}"
    if options.parity:
        paths = ",".join(f"/dev/shm/{name}.{i}" for i in range(3))
        where = f"file:{paths}?size=24MiB"
    else:
        where = f"file:/dev/shm/{name}?size=32MiB"
    environment = {}
    if options.incoherent:
        where += "&coherence=flush"
        environment = job.incoherent_environment(seed) | {"JAX_CXL_POOL": "shm:"}
    arguments = [f"--where={where}", f"--seed={seed}", f"--parity={options.parity}"]
    kills = options.per_job
    try:
        if options.whole:
            done, kills = _kill_whole_jobs(seed, kills, arguments, environment, options.processes)
        else:
            done = job.run(
                _PROGRAM,
                *arguments,
                f"--kills={kills}",
                processes=options.processes,
                launcher=(f"--restarts={kills}",),
                environment=environment,
                modules=("numpy.testing", "jax_cxl"),
                timeout=120 + 20 * kills,
            )
    except AssertionError as error:
        return str(error), 0, []
    finally:
        for path in pathlib.Path("/dev/shm").glob(f"{name}*"):
            path.unlink()
    lines = [json.loads(text) for text in re.findall(r"^\[\d+\] (\{.*\})$", done.stdout, re.M)]
    died = {line["death"]: line["died"] for line in lines if "died" in line}
    again = {line["after"]: line for line in lines if "after" in line}
    returned = dict.fromkeys(again, 0)
    for line in lines:
        if line.get("life") in again:
            returned[line["life"]] = max(returned[line["life"]], line["returned"])
    # If process 0 dies, JAX may end the other one before it has noticed an error.
    errors = {line["lost"]: {"error": line["error"]} for line in lines if "error" in line}
    stepped = {line["again"]: {"stepped": line["stepped"]} for line in lines if "stepped" in line}
    events = [
        line
        | errors.get(death, {})
        | stepped.get(death, {})
        | {"died": died[death], "lost": returned[death] - line["found"]}
        for death, line in again.items()
    ]
    ends = [line for line in lines if "digest" in line]
    if done.returncode or not ends or (not options.whole and len(events) < kills):
        return f"ends with {done.returncode}\n{done.stdout}{done.stderr}", 0, events
    if max((event["lost"] for event in events), default=0) > 1:
        return f"more than one step is lost: {events}", kills, events
    end = ends[0]
    undisturbed = job.run(
        _PROGRAM,
        f"--where=file:/dev/shm/{name}?size=32MiB",
        f"--steps={end['step']}",
        processes=options.processes,
    )
    (pathlib.Path("/dev/shm") / name).unlink()
    if f'"digest": {end["digest"]}}}' not in undisturbed.stdout:
        return f"other losses: {end}\n{undisturbed.stdout}{undisturbed.stderr}", kills, events
    return "", kills, events


def _kill_whole_jobs(
    seed: int, kills: int, arguments: list[str], environment: dict[str, str], processes: int
) -> tuple[subprocess.CompletedProcess[str], int]:
    """Runs a job several times, and kills each with its launcher; then runs it to its end.

    Returns:
      The last job, and how many jobs were killed.
    """
    rng = random.Random(seed)
    options = {"processes": processes, "environment": environment}
    died = 0
    for _ in range(kills):
        running = job.start(_PROGRAM, *arguments, "--steps=100000", **options)
        time.sleep(rng.uniform(1, 5))
        running.kill()  # The processes die with the launcher.
        running.communicate()
        died += running.wait() < 0
    return job.run(_PROGRAM, *arguments, **options), died


if __name__ == "__main__":
    sys.exit(main())
