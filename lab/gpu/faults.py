"""The stage of the suite that causes faults on CPU ranks and GPU ranks, and compares the errors."""

import collections
import concurrent.futures
import dataclasses
import json
import os
import random
import re
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from lab.gpu.process import Record, StageError, Suite

_ALONE = ("killed", "stopped", "never comes", "raises", "exits", "os._exit")
_DISAGREE = (
    *("operation", "reduction", "dtype", "count", "root", "permutation", "order"),
    *("order_in_program", "branch", "number", "number_then_another", "loop"),
)
# The attributes of errors (docs/errors.md) that have to be the same on both platforms. Pids and
# hosts differ between the jobs, so the comparison only asks if they are those of the victim.
_SAME = ("kind", "rank", "pid", "host", "last", "call", "ranks", "calls")
_ONLY_IF_STALLED = re.compile(r"( among ranks [\d ]+)?(, in launch \d+ of \S+)?$")
_JOBS = 4  # Jobs at the same time. Each has two ranks, and most of its time is JAX's start.
_JOB_SECONDS = 45  # The time of a job, on a busy machine.
_REPORT_SECONDS = 1.0  # A death has to be reported within this time.
# The pools in which ranks are killed.
_POOLS = {
    "coherent": "coherence=coherent",
    "flush": "coherence=flush",
    "memory": "coherence=flush&gpu_writes=memory",
}


def faults(
    names: tuple[str, ...] = (*_ALONE, *_DISAGREE), kills: int = 12
) -> Callable[[Suite], Record]:
    """Returns a stage that causes each fault on two CPU ranks, and on two of the suite's platform.

    The stage fails if the errors of a fault differ between the two platforms.

    Args:
      names: names of the faults.
      kills: in each kind of pool, the number of jobs that lose a rank at a random instant.
    """

    def run(suite: Suite) -> Record:
        platforms = ("cpu", suite.platform)
        tasks = [(side, fault) for fault in names for side in (0, 1)]
        seeds = [(where, seed) for seed in range(kills) for where in _POOLS]
        with concurrent.futures.ThreadPoolExecutor(_JOBS) as pool:
            # The kills run first, because a fault that hangs could take the time of what comes
            # later.
            killed = pool.map(lambda kill: _kill(suite, *kill), seeds)
            caused = pool.map(lambda task: _cause(suite, platforms[task[0]], task[1]), tasks)
            errors = dict(zip(tasks, caused, strict=True))
        rows = [row for name in names for row in _rows(name, errors[0, name], errors[1, name])]
        record: Record = {"platforms": platforms, "faults": rows, "kills": []}
        print(f"          {'fault':20} on same  seconds to the error: cpu, {suite.platform}")
        for row in rows:
            said = "" if row["same"] else json.dumps(row["said"])
            columns = f"{row['fault']:20} {row['on']:2} {row['same']!s:5} {row['seconds']}"
            print(f"          {columns} {said}")
        found = list(zip(seeds, killed, strict=True))
        for where, options in _POOLS.items():
            summary = _summary([kill for (pool_of, _), kill in found if pool_of == where])
            record["kills"].append({"pool": options, **summary})
            print(f"          kills, {where}: {json.dumps(record['kills'][-1])}", flush=True)
        bad = [row["fault"] for row in rows if not row["same"]]
        if bad or any(kill["right"] < kill["jobs"] for kill in record["kills"]):
            raise StageError("failed", different=bad, **record)
        return record

    return run


def _cause(suite: Suite, platform: str, fault: str, **environment: str) -> dict[str, Any]:
    """Runs a job of two ranks, and causes the fault in it.

    Returns:
      The errors by rank, the time of the fault, pids and host of the ranks, and the output.
    """
    # By default XLA divides autotuning among the processes, and waits until all of them compile the
    # same program. But here the programs of the ranks differ.
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_gpu_shard_autotuning=false"
    within = min(suite.deadline, time.monotonic() + _JOB_SECONDS)
    text, _ = dataclasses.replace(suite, deadline=within).run(
        *(sys.executable, "-m", "jax_cxl.launch", "-n", "2", "--no-prefix", "--go-on"),
        *("tests/programs/failures/faults.py", f"--fault={fault}"),
        *environment.pop("arguments", "").split(),
        check=False,
        JAX_PLATFORMS=platform,
        XLA_PYTHON_CLIENT_PREALLOCATE="false",
        XLA_FLAGS=flags.strip(),
        **({"JAX_LOCAL_DEVICE_IDS": "0"} if platform == "cuda" and suite.shares_gpu else {}),
        **{"JAX_CXL_TIMEOUT": "2", "JAX_CXL_WARN_AFTER": "1", **environment},
    )
    said = collections.defaultdict(list)
    for what, line in re.findall(r"^(fault|error|pids) (\{.*\})$", text, re.MULTILINE):
        said[what].append(json.loads(line))
    return {
        "errors": {error["on"]: error for error in said["error"]},
        "at": max((fault["at"] for fault in said["fault"]), default=None),
        **(said["pids"][0] if said["pids"] else {"pids": [], "host": None}),
        "output": text[-3000:],
    }


def _normal(job: dict[str, Any], on: int) -> dict[str, Any]:
    """Returns the attributes of the error on rank `on`, without what differs between jobs."""
    error = dict(job["errors"].get(on, {}))
    if "pid" in error and error["pid"] is not None:
        error["pid"] = "the victim's" if error["pid"] == job["pids"][1] else "another"
    if "host" in error and error["host"] is not None:
        error["host"] = "the victim's" if error["host"] == job["host"] else "another"
    said = {name: error[name] for name in _SAME if name in error}
    if said.get("calls"):
        # If calls stall, the error lists first the rank that found the stall. Only such an error
        # says which ranks the group has, and in which launch they are.
        sides = sorted(zip(error["ranks"], error["calls"], strict=True))
        said["ranks"] = [rank for rank, _ in sides]
        said["calls"] = [_ONLY_IF_STALLED.sub("", call) for _, call in sides]
    return said


def _rows(fault: str, cpu: dict[str, Any], other: dict[str, Any]) -> list[dict[str, Any]]:
    """Compares the errors of the two jobs of a fault; returns a row for each rank with an error."""
    rows = []
    for on in sorted({0, *cpu["errors"], *other["errors"]}):
        said = [_normal(job, on) for job in (cpu, other)]
        known = all(value not in (None, []) for value in said[0].values()) and said[0]
        rows.append(
            {
                "fault": fault,
                "on": on,
                "same": bool(known) and said[0] == said[1],
                "seconds": [_seconds(job, on, "reported") for job in (cpu, other)],
                "seconds_raised": [_seconds(job, on, "raised") for job in (cpu, other)],
                "told_by": [job["errors"].get(on, {}).get("told_by") for job in (cpu, other)],
                "waited_s": [job["errors"].get(on, {}).get("waited_s") for job in (cpu, other)],
                "said": said,
            }
        )
        if not rows[-1]["same"]:
            rows[-1]["texts"] = [
                job["errors"].get(on, {}).get("text") or job["output"] for job in (cpu, other)
            ]
    return rows


def _seconds(job: dict[str, Any], on: int, when: str) -> float | None:
    error = job["errors"].get(on)
    return round(error[when] - job["at"], 3) if error and job["at"] else None


def _kill(suite: Suite, where: str, seed: int) -> dict[str, Any]:
    """Kills rank 1 at a random instant of a loop of calls, and checks the error on rank 0."""
    rng = random.Random(f"{where} {seed}")
    # In float32, calls of 4 KiB use flags, those of 1 MiB a kernel, and those of 64 MiB copy
    # engines.
    sizes = rng.choice(("1024", "262144", "16777216", "1024,262144,16777216"))
    if suite.platform == "cpu":
        sizes = sizes.replace("16777216", "1048576")
    job = _cause(
        suite,
        suite.platform,
        "at random",
        JAX_CXL_POOL=f"shm:?size=512MiB&{_POOLS[where]}",
        JAX_CXL_TIMEOUT="60",
        arguments=f"--after={rng.random() * 0.5:.6f} --sizes={sizes}",
    )
    error = job["errors"].get(0, {})
    right = error.get("kind") == "PeerLostError" and error.get("rank") == 1
    right = right and error.get("pid") == job["pids"][1] and "psum" in (error.get("call") or "")
    return {
        "right": right,
        "reported": _seconds(job, 0, "reported"),
        "raised": _seconds(job, 0, "raised"),
        "what": None if right else {"sizes": sizes, "error": error, "output": job["output"]},
    }


def _summary(kills: list[dict[str, Any]]) -> dict[str, Any]:
    record: dict[str, Any] = {
        "jobs": len(kills),
        "right": sum(kill["right"] and kill["reported"] < _REPORT_SECONDS for kill in kills),
    }
    for when in ("reported", "raised"):
        seconds = [kill[when] for kill in kills if kill[when] is not None]
        if seconds:
            record[f"seconds_{when}"] = {
                "median": round(statistics.median(seconds), 3),
                "max": max(seconds),
            }
    wrong = [kill["what"] for kill in kills if kill["what"]]
    return {**record, **({"wrong": wrong} if wrong else {})}
