"""The command line of `python -m jax_cxl trace`."""

import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from jax_cxl import errors
from jax_cxl._commands import option_types
from jax_cxl._commands.status import analysis, pools

_DESCRIPTION = """\
Writes the last calls of a job's ranks as a timeline, for https://ui.perfetto.dev or
chrome://tracing.

Each rank is a process of the timeline. A call is a bar with its name. In this bar, a second bar is
the time in which the call waited for other ranks, and a third bar is the time in which it worked.
An arrow goes from the rank that came last to each rank that waited for it. The job continues
meanwhile."""

_EPILOG = """\
pool:
  As for python -m jax_cxl status: nothing for your only job on this machine, a process id,
  shm:NAME, a path, or a file that python -m jax_cxl.launch --post-mortem FILE has written.

  The flight recorder has the last 4,096 calls of each rank. Each host measures times with its
  own clock."""

# An arrow is drawn only if a rank waited at least this long.
_ARROW_SECONDS = 10e-6


def main(arguments: Sequence[str]) -> int:
    """Runs the command; returns 0, or 2 if there is no pool to read."""
    parser = option_types.command("trace", _DESCRIPTION, epilog=_EPILOG)
    parser.add_argument("pool", nargs="?", help="the job; see below")
    parser.add_argument(
        "-o",
        "--output",
        type=option_types.output_file,
        required=True,
        metavar="FILE",
        help="where to write the timeline, such as trace.json",
    )
    options = parser.parse_args(arguments)
    try:
        found = pools.named(options.pool) if options.pool else pools.of_this_user()
    except (OSError, ValueError) as error:
        parser.error(str(error))
    if len(found) > 1:
        names = ", ".join(pool.name for pool in found)
        parser.error(f"there are several jobs: {names}; name a pool, or a process of the job")
    if not found:
        print(f"trace: no job found{f' on {options.pool}' * bool(options.pool)}", file=sys.stderr)
        return 2
    try:
        job = analysis.read(found[0].read())
    except (OSError, errors.CxlError) as error:
        print(f"trace: {error}", file=sys.stderr)
        return 2
    timeline = of_job(found[0].name, job)
    options.output.write_text(json.dumps(timeline))
    calls = sum(event.get("cat") == "call" for event in timeline["traceEvents"])
    print(f"wrote {options.output}: {calls} calls of {len(job.ranks)} ranks")
    return 0


def of_job(name: str, job: analysis.Job) -> dict[str, Any]:
    """Returns the timeline of a job, in the Trace Event Format."""
    submitted = [call["submitted"] for rank in job.ranks for call in rank.record["calls"]]
    first = min(submitted, default=0.0)
    events: list[dict[str, Any]] = []
    lanes: dict[tuple[int, int], int] = {}
    for rank in job.ranks:
        number = rank.number
        events.append(_event("M", number, 0, "process_name", args={"name": rank.name}))
        events.append(_event("M", number, 0, "process_sort_index", args={"sort_index": number}))
        busy_until: list[float] = []
        for call in rank.record["calls"]:
            begin = call["submitted"]
            # Draw an unfinished call up to the rank's last heartbeat.
            end = call["finished"] or max(rank.record["last_sign_of_life"], call["started"])
            lane = _place(busy_until, begin, max(begin, end))
            lanes[number, call["number"]] = lane
            events += _bars(rank, call, lane, first, busy_until[lane])
        for lane in range(len(busy_until)):
            what = f"at the same time, {lane}" if lane else "collectives"
            events.append(_event("M", number, lane, "thread_name", args={"name": what}))
    events += _arrows(job, lanes, first)
    return {
        "traceEvents": events,
        "displayTimeUnit": "ns",
        "otherData": {"pool": name, "time of 0, in seconds since 1970": first},
    }


def _event(phase: str, rank: int, lane: int, name: str, **more: Any) -> dict[str, Any]:
    return {"ph": phase, "pid": rank, "tid": lane, "name": name, **more}


def _place(busy_until: list[float], begin: float, end: float) -> int:
    """Returns the first track of a rank that is free from `begin` on, and takes it until `end`.

    So calls that overlap lie on different tracks. `busy_until` has the time at which the last call
    of each track ends.
    """
    free = (lane for lane, busy in enumerate(busy_until) if busy <= begin)
    lane = next(free, len(busy_until))
    busy_until[lane : lane + 1] = [end]
    return lane


def _bars(
    rank: analysis.Rank, call: dict[str, Any], lane: int, first: float, end: float
) -> Iterator[dict[str, Any]]:
    def bar(name: str, category: str, since: float, until: float) -> dict[str, Any]:
        ts, dur = 1e6 * (since - first), 1e6 * (until - since)
        return _event("X", rank.number, lane, name, cat=category, ts=ts, dur=dur)

    arguments = {
        "what": call["what"],
        "line": call["site"] or "not known",
        "number": call["number"],
        "group": rank.record["groups"].get(call["group"], []),
        "status": call["code"] if call["finished"] else "under way",
    }
    begin = call["submitted"]
    yield bar(call["name"], "call", begin, end) | {"args": arguments}
    # `started` is 0 for an eager call, and for a call that still waits for other ranks. In both
    # cases all of the call's time is a wait.
    started = min(max(call["started"], begin), end) if call["started"] else end
    for name, since, until in (("waiting", begin, started), ("working", started, end)):
        if until > since:
            yield bar(name, name, since, until)


def _arrows(
    job: analysis.Job, lanes: dict[tuple[int, int], int], first: float
) -> Iterator[dict[str, Any]]:
    """Yields an arrow from the rank that joined a call last to each rank that waited."""
    calls: dict[tuple[int, int], dict[int, dict[str, Any]]] = {}
    for each in job.ranks:
        for call in each.record["calls"]:
            calls.setdefault((call["group"], call["identity"]), {})[each.number] = call
    numbers = itertools.count(1)
    for by_rank in calls.values():
        last = max(by_rank, key=lambda rank: by_rank[rank]["submitted"])
        late = by_rank[last]
        for rank, call in by_rank.items():
            if late["submitted"] - call["submitted"] < _ARROW_SECONDS or not call["finished"]:
                continue
            ready = min(call["started"] or call["finished"], call["finished"])
            if ready < late["submitted"]:
                continue  # The clocks of the two hosts disagree.
            arrow = {"cat": "waited for", "id": next(numbers)}
            begins, ends = 1e6 * (late["submitted"] - first), 1e6 * (ready - first)
            lane, other = lanes[last, late["number"]], lanes[rank, call["number"]]
            yield _event("s", last, lane, "waited for", ts=begins, **arrow)
            yield _event("f", rank, other, "waited for", ts=ends, bp="e", **arrow)
