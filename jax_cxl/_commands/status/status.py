"""The command line of `python -m jax_cxl status`."""

import dataclasses
import json
import sys
from collections.abc import Sequence
from typing import Any

from jax_cxl import _text, errors
from jax_cxl._commands import option_types
from jax_cxl._commands.status import analysis, pools
from jax_cxl._job import lateness, process_identity, stacks

_DESCRIPTION = """\
Shows the current or last calls of a job's ranks, which ranks they wait for, and the cause.

The command reads the flight recorder, which has the last 4,096 calls of each rank in the
pool. It changes nothing. The job need not answer, and may have ended."""

_EPILOG = f"""\
pool:
  (none)           all your jobs on this machine: running jobs, and failed jobs whose pools
                   were kept (shm:?keep=on-failure)
  PID              the job of this process, or of the processes that it has started, as the
                   launcher has
  shm:NAME         the job on this pool
  FILE, dax:/dev/daxX.Y?offset=...
                   a pool in a file or on a device, whether its job lives or not, or a file
                   that python -m jax_cxl.launch --post-mortem FILE has written

  A pool in /dev/shm is freed when the last rank ends, so the launcher reads it before that.
  With keep=on-failure in its URI it stays if the job fails.

late ranks:
  The calls in the recorders are divided into {lateness.STRETCHES} parts. A rank is
  "persistently late" if three things are true. There are at least {lateness.FEWEST_CALLS} calls. In
  {lateness.LED} parts the others waited longer for this rank than for all other ranks.
  And they waited at least {lateness.SHARE_OF_TIME:.0%} of the time for this rank alone.

stacks:
  If the others wait for a rank of this machine that runs, the command shows its Python
  stack. It sends the process a signal that jax_cxl has reserved for this.

exit status:
  0  the jobs, if any, are healthy. A rank may wait for another that has yet to come
  1  a job has a culprit: a rank that is gone, stopped or silent, or that made it fail
  2  there is no job, or it cannot be read"""

# How many of the last calls of each rank the JSON has.
_CALLS = 64
_COLUMNS = ("rank", "pid", "host", "state", "calls", "last call", "since", "waits for")


def main(arguments: Sequence[str]) -> int:
    """Runs the command; returns the status to exit with, which the help describes."""
    parser = option_types.command("status", _DESCRIPTION, epilog=_EPILOG)
    parser.add_argument("pool", nargs="?", help="the job; see below")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    options = parser.parse_args(arguments)
    try:
        found = pools.named(options.pool) if options.pool else pools.of_this_user()
    except (OSError, ValueError) as error:
        parser.error(str(error))
    jobs = []
    for pool in found:
        try:
            jobs.append((pool.name, analysis.watch(pool.read)))
        except (OSError, errors.CxlError) as error:  # The job may have ended.
            print(f"status: {error}", file=sys.stderr)
    if options.json:
        described = {"jobs": [_as_json(name, job) for name, job in jobs]}
        print(json.dumps(described, indent=1))
    else:
        for name, job in jobs:
            _print(name, job)
    if not jobs:
        if not found:
            what = f"on {options.pool}" if options.pool else "of yours on this machine"
            print(f"status: no job found {what}", file=sys.stderr)
        return 2
    return int(any(job.culprits for _, job in jobs))


def _as_json(name: str, job: analysis.Job) -> dict[str, Any]:
    def call(record: dict[str, Any]) -> dict[str, Any]:
        # Write 64-bit numbers as text, because many readers convert JSON numbers to floating point.
        text = {key: f"{record[key]:#018x}" for key in ("identity", "group")}
        return record | text

    def rank(entry: analysis.Rank) -> dict[str, Any]:
        record = dict(entry.record)
        record["calls"] = [call(each) for each in record["calls"][-_CALLS:]]
        record["groups"] = {f"{key:#018x}": value for key, value in record["groups"].items()}
        late = entry.late and dataclasses.asdict(entry.late) | {"persistent": entry.late.persistent}
        return record | {"state": entry.state, "waits_for": entry.waits_for, "lateness": late}

    return {
        "pool": name,
        "ranks": [rank(entry) for entry in job.ranks],
        "culprits": [{"rank": number, "why": why} for number, why in job.culprits.items()],
        "late": [{"rank": number, "why": why} for number, why in job.late.items()],
    }


def _print(name: str, job: analysis.Job) -> None:
    rows: list[tuple[str, ...]] = [
        (
            *(str(rank.number), str(rank.record["pid"]), rank.record["host"], rank.state),
            *(str(rank.record["submitted_calls"]), *rank.progress()),
            ", ".join(map(str, rank.waits_for)),
        )
        for rank in job.ranks
    ]
    print(name)
    print("\n".join(_text.table([_COLUMNS, *rows])))
    for rank in job.ranks:
        if rank.record["gave_up"]:
            print(f"{rank.name} gave up: {rank.record['gave_up']['reason']}")
    for line in analysis.verdicts(job):
        print(line)
    for rank in job.ranks:
        if rank.number in job.late or (rank.number in job.culprits and rank.state == "running"):
            _print_stack(rank)
    for rank in job.ranks:
        if rank.late is not None and rank.late.persistent:
            print(f"persistently late: {rank.late.sentence()}")


def _print_stack(rank: analysis.Rank) -> None:
    if not process_identity.pid_means_the_same(rank.record):
        return
    stack = stacks.read(rank.record["pid"])
    if stack:
        print(f"Python stack of {rank.name}:")
        print("\n".join(f"  {line}" for line in stack.splitlines()))
