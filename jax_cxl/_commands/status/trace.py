"""The command line of `python -m jax_cxl trace`."""

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
    parser.add_argument(
        "--calls",
        type=option_types.whole_number(1),
        default=analysis.ALL_CALLS,
        metavar="N",
        help="the last N calls of each rank (default: all calls in the recorder, at most 4096)",
    )
    options = parser.parse_args(arguments)
    try:
        found = pools.named(options.pool) if options.pool else pools.running() + pools.left_behind()
    except (OSError, ValueError) as error:
        parser.error(str(error))
    if len(found) > 1:
        names = ", ".join(pool.name for pool in found)
        parser.error(f"there are several jobs: {names}; name a pool, or a process of the job")
    if not found:
        print(f"trace: no job found{f' on {options.pool}' * bool(options.pool)}", file=sys.stderr)
        return 2
    try:
        job = analysis.read(found[0].read(), options.calls)
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
    records = [rank.record for rank in job.ranks]
    first = min(
        (call["submitted"] for record in records for call in record["calls"]),
        default=0.0,
    )
    events: list[dict[str, Any]] = []
    places: dict[tuple[int, int], tuple[int, dict[str, Any]]] = {}
    for rank in job.ranks:
        events += _names(rank)
        lanes = _Lanes()
        for call in rank.record["calls"]:
            begin = call["submitted"] - first
            end = max(_end(rank.record, call) - first, begin)
            lane = lanes.place(begin, end)
            places[rank.number, call["number"]] = lane, call
            events += _bars(rank, call, lane, first, begin, end)
        events += _lane_names(rank.number, lanes)
    events += _arrows(records, places, first)
    return {
        "traceEvents": events,
        "displayTimeUnit": "ns",
        "otherData": {"pool": name, "time of 0, in seconds since 1970": first},
    }


def _end(record: dict[str, Any], call: dict[str, Any]) -> float:
    """Returns when a call ended. An unfinished call ends with the rank's last heartbeat."""
    return call["finished"] or max(record["last_sign_of_life"], call["started"])


def _names(rank: analysis.Rank) -> Iterator[dict[str, Any]]:
    meta = {"ph": "M", "pid": rank.number, "tid": 0}
    yield meta | {"name": "process_name", "args": {"name": rank.name}}
    yield meta | {"name": "process_sort_index", "args": {"sort_index": rank.number}}


class _Lanes:
    """The tracks of a rank. Calls that overlap lie on different tracks."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def place(self, begin: float, end: float) -> int:
        """Returns the first track that is free from `begin` on, and takes it until `end`."""
        for lane, busy_until in enumerate(self.ends):
            if busy_until <= begin:
                self.ends[lane] = end
                return lane
        self.ends.append(end)
        return len(self.ends) - 1


def _lane_names(rank: int, lanes: _Lanes) -> Iterator[dict[str, Any]]:
    for lane in range(len(lanes.ends)):
        name = "collectives" if lane == 0 else f"at the same time, {lane}"
        yield {
            "ph": "M",
            "pid": rank,
            "tid": lane,
            "name": "thread_name",
            "args": {"name": name},
        }


def _bars(
    rank: analysis.Rank,
    call: dict[str, Any],
    lane: int,
    first: float,
    begin: float,
    end: float,
) -> Iterator[dict[str, Any]]:
    bar = {"ph": "X", "pid": rank.number, "tid": lane}
    arguments = {
        "what": call["what"],
        "line": call["site"] or "not known",
        "number": call["number"],
        "group": rank.record["groups"].get(call["group"], []),
        "status": call["code"] if call["finished"] else "under way",
    }
    yield bar | {
        "name": call["name"],
        "cat": "call",
        "ts": 1e6 * begin,
        "dur": 1e6 * (end - begin),
        "args": arguments,
    }
    # A call without a start is an eager call, or still waits.
    started = min(max(call["started"] - first, begin), end) if call["started"] else end
    for name, since, until in (("waiting", begin, started), ("working", started, end)):
        if until > since:
            yield bar | {
                "name": name,
                "cat": name,
                "ts": 1e6 * since,
                "dur": 1e6 * (until - since),
            }


def _arrows(
    records: Sequence[dict[str, Any]],
    places: dict[tuple[int, int], tuple[int, dict[str, Any]]],
    first: float,
) -> Iterator[dict[str, Any]]:
    """Yields an arrow from the rank that joined a call last to each rank that waited."""
    calls: dict[tuple[int, int], dict[int, dict[str, Any]]] = {}
    for record in records:
        for call in record["calls"]:
            calls.setdefault((call["group"], call["identity"]), {})[record["rank"]] = call
    number = 0
    for by_rank in calls.values():
        last = max(by_rank, key=lambda rank: by_rank[rank]["submitted"])
        lane, late = places[last, by_rank[last]["number"]]
        for rank, call in by_rank.items():
            if late["submitted"] - call["submitted"] < _ARROW_SECONDS or not call["finished"]:
                continue
            ready = min(call["started"] or call["finished"], call["finished"])
            if ready < late["submitted"]:
                continue  # The clocks of the two hosts disagree.
            number += 1
            arrow = {"name": "waited for", "cat": "waited for", "id": number}
            yield arrow | {
                "ph": "s",
                "pid": last,
                "tid": lane,
                "ts": 1e6 * (late["submitted"] - first),
            }
            yield arrow | {
                "ph": "f",
                "bp": "e",
                "pid": rank,
                "tid": places[rank, call["number"]][0],
                "ts": 1e6 * (ready - first),
            }
