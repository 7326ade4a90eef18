"""Kills processes of jobs that train with a pooled optimizer, and checks their losses.

    python -m lab.kills.tier_kills --kills=300

tests/programs/tier/trained.py trains on `--processes` processes. They are killed one at a time,
half of them in the middle of an update. After each death the launcher starts all processes again,
and they restore the state. With `--whole` the whole job, including its launcher, is killed each
time, and started again on fewer or more processes. The jobs never save explicitly. A job is right
if all losses that it prints are those of an undisturbed job of one process, to the last bit, and if
it lost at most one step for which `step` had returned. The exit status is 1 if a job is not right.
"""

import argparse
import json
import random
import re
import subprocess
import sys
import time
from typing import Any

import job
import shared_folder

_PROGRAM = "tier/trained.py"
_MODULES = ("numpy", "optax", "jax_cxl")


def main() -> int:
    """Runs the jobs; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=20, help="deaths in all (default: 20)")
    parser.add_argument("--per-job", type=int, default=25, help="deaths in a job (default: 25)")
    parser.add_argument("--processes", type=int, default=2, help="of a job (default: 2)")
    parser.add_argument("--seed", type=int, default=0, help="of the first job (default: 0)")
    parser.add_argument("--whole", action="store_true", help="kill whole jobs")
    options = parser.parse_args()
    began = time.monotonic()
    found = {"kills": 0, "in an update": 0, "jobs": 0, "right": 0, "steps": 0, "lost": 0}
    left = options.kills
    while left > 0:
        kills = min(left, options.per_job)
        problem, of_job = _run(options.seed + found["jobs"], kills, options)
        for name, value in of_job.items():
            found[name] = max(found[name], value) if name == "lost" else found[name] + value
        found["jobs"] += 1
        found["right"] += not problem
        left -= kills
        if problem:
            print(f"seed {options.seed + found['jobs'] - 1}: {problem}", flush=True)
        print(json.dumps(found), flush=True)
    found["steps lost, at most"] = found.pop("lost")
    print(json.dumps(found | {"minutes": round((time.monotonic() - began) / 60, 1)}), flush=True)
    return int(found["right"] < found["jobs"])


def _run(seed: int, kills: int, options: argparse.Namespace) -> tuple[str, dict[str, int]]:
    """Runs a job that is killed, and one that is not, and compares their losses.

    Returns:
      What is wrong, or ""; and counts, such as the number of kills.
    """
    with shared_folder.folder("jax_cxl_tier_kills.") as folder:
        arguments = [f"--where=file:{folder}/a?size=96MiB", f"--seed={seed}"]
        try:
            run = _kill_whole_jobs if options.whole else _kill_processes
            done, killed = run(seed, kills, arguments, options.processes)
        except AssertionError as error:
            return str(error), {}
        lines = _lines(done.stdout)
        ends = [line for line in lines if "end" in line]
        if done.returncode or not ends:
            return f"ends with {done.returncode}\n{done.stdout[-4000:]}{done.stderr[-4000:]}", {}
        undisturbed = job.run(
            _PROGRAM,
            *(f"--where=file:{folder}/b?size=96MiB", f"--until={ends[0]['end']}"),
            processes=1,
            modules=_MODULES,
        )
    expected = {line["step"]: line["loss"] for line in _lines(undisturbed.stdout) if "loss" in line}
    losses = [(line["step"], line["loss"]) for line in lines if "loss" in line]
    lost = _steps_lost(lines)
    counts = {
        "kills": killed,
        "in an update": sum(line.get("died") == "in an update" for line in lines),
        "steps": len(expected),
        "lost": lost,
    }
    if {step for step, _ in losses} != set(expected):
        return (
            f"steps are missing\n{undisturbed.stdout[-2000:]}{undisturbed.stderr[-2000:]}",
            counts,
        )
    wrong = [step for step, loss in losses if expected[step] != loss]
    if wrong:
        return f"other losses at steps {wrong[:8]}", counts
    return ("" if lost <= 1 else f"{lost} steps are lost"), counts


def _steps_lost(lines: list[dict[str, Any]]) -> int:
    """Returns the largest number of steps that had returned, and that a restart did not find."""
    returned = lost = 0
    for line in lines:
        returned = max(returned, line.get("returned", 0))
        if "found" in line:
            lost = max(lost, returned - line["found"])
    return lost


def _lines(output: str) -> list[dict[str, Any]]:
    return [json.loads(text) for text in re.findall(r"^(?:\[\d+\] )?(\{.*\})$", output, re.M)]


def _kill_processes(
    seed: int, kills: int, arguments: list[str], processes: int
) -> tuple[subprocess.CompletedProcess[str], int]:
    """Runs a job whose processes die one after another. The launcher starts all again.

    Returns:
      The job, and how many processes died.
    """
    del seed
    done = job.run(
        _PROGRAM,
        *arguments,
        f"--kills={kills}",
        processes=processes,
        launcher=(f"--restarts={kills}",),
        modules=_MODULES,
        timeout=120 + 20 * kills,
    )
    return done, kills


def _kill_whole_jobs(
    seed: int, kills: int, arguments: list[str], processes: int
) -> tuple[subprocess.CompletedProcess[str], int]:
    """Runs several jobs on different numbers of processes, and kills each before it ends.

    Then it runs a last job to its end.

    Returns:
      The last job, with the output of all jobs, and how many jobs were killed.
    """
    rng = random.Random(seed)
    output, died = "", 0
    for number in range(kills):
        of_job = {"processes": processes - number % processes, "modules": _MODULES}
        if rng.random() < 0.5:  # A process dies, half of the time in an update, and ends the job.
            dying = "--kills=1", f"--seed={rng.randrange(1 << 20)}"
            ended = job.run(_PROGRAM, *arguments, *dying, **of_job)
            output += ended.stdout
            died += ended.returncode != 0
            continue
        running = job.start(_PROGRAM, *arguments, "--steps=1000000", **of_job)
        steps = rng.randrange(1, 6)
        while steps and (line := running.stdout.readline()):
            output += line
            steps -= '"loss"' in line
        time.sleep(rng.uniform(0, 0.1))
        running.kill()  # The processes die with the launcher.
        output += running.communicate()[0]
        died += running.wait() < 0
    last = job.run(_PROGRAM, *arguments, processes=processes, modules=_MODULES)
    complete = re.sub(r"(?m)^.*[^}\n]$\n?", "", output)  # A line may have been cut.
    return subprocess.CompletedProcess(
        (), last.returncode, complete + last.stdout, last.stderr
    ), died


if __name__ == "__main__":
    sys.exit(main())
