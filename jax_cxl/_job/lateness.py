"""Finds stragglers: ranks that the other ranks wait for.

The rank that joins a call last waits the least in the call. The difference between its wait and the
second shortest wait is the time that the other ranks lost because of this rank alone. Each rank
measures its wait with its own clock, so clocks of different hosts need not agree.
"""

import dataclasses
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

# The calls are divided into STRETCHES parts. A rank is persistently late if two things are true. In
# at least LED stretches the others waited longer for it than for all other ranks together. And they
# waited for it at least SHARE_OF_TIME of the whole time. If two ranks do equal work, each leads a
# stretch with a probability of at most one half, and reaches LED once in 200,000 jobs.
STRETCHES = 30
LED = 27
SHARE_OF_TIME = 0.05
FEWEST_CALLS = 100


@dataclasses.dataclass(frozen=True)
class Lateness:
    """How late a rank joined its calls. Only calls that are in the recorders of all members count.

    Attributes:
      rank: the rank.
      calls: number of calls.
      last: how many of them it joined last.
      median: median of the seconds between the other ranks and this rank, over the calls that it
        joined last.
      lost: total seconds that the others waited only for this rank.
      span: seconds from the first of the calls to the end of the last one.
      led: the calls are divided into STRETCHES parts; in how many of these parts the others waited
        longer for this rank than for all other ranks together.
    """

    rank: int
    calls: int
    last: int
    median: float
    lost: float
    span: float
    led: int

    @property
    def persistent(self) -> bool:
        """Whether the rank is late in most stretches, and costs time."""
        return (
            self.calls >= FEWEST_CALLS
            and self.led >= LED
            and self.lost >= SHARE_OF_TIME * self.span
        )

    def sentence(self) -> str:
        """Describes how late the rank is."""
        return (
            f"rank {self.rank} came last to {self.last} of the last {self.calls} calls, by"
            f" {1e3 * self.median:.3g} ms in the median; the others waited"
            f" {100 * self.lost / self.span if self.span else 0:.0f}% of the time for it alone"
        )


def of_ranks(records: Sequence[Mapping[str, Any]], since: float = 0.0) -> list[Lateness]:
    """Compares the ranks of a job.

    Args:
      records: record of each rank, from `_core.JobRecord.rank`.
      since: seconds since 1970; calls that were submitted earlier are left out.

    Returns:
      The lateness of each rank that shares calls with others, by rank.
    """
    waits: dict[tuple[int, int, int], dict[int, float]] = {}
    begins: dict[tuple[int, int, int], float] = {}
    spans: dict[int, list[float]] = {}
    for record in records:
        seen: dict[tuple[int, int], int] = {}
        for call in record["calls"]:
            key = call["group"], call["identity"]
            seen[key] = seen.get(key, 0) + 1
            if not call["finished"] or call["code"] != "OK" or call["submitted"] < since:
                continue
            all_there = call["started"] or call["finished"]
            wait = max(all_there - call["submitted"], 0.0)
            waits.setdefault((*key, seen[key]), {})[record["rank"]] = wait
            begins.setdefault((*key, seen[key]), call["submitted"])
            spans.setdefault(record["rank"], []).extend((call["submitted"], call["finished"]))
    groups = {key: members for record in records for key, members in record["groups"].items()}
    # Only calls that every member's recorder still holds: a recorder overwrites its oldest calls.
    whole = sorted(
        (key for key, by_rank in waits.items() if 1 < len(by_rank) == len(groups.get(key[0], ()))),
        key=begins.__getitem__,
    )
    leads: dict[int, list[float]] = {}
    calls: dict[int, int] = {}
    lost: list[dict[int, float]] = [{} for _ in range(STRETCHES)]
    for place, place_key in enumerate(whole):
        by_rank = waits[place_key]
        for rank in by_rank:
            calls[rank] = calls.get(rank, 0) + 1
        last, second = sorted(by_rank, key=by_rank.__getitem__)[:2]
        lead = by_rank[second] - by_rank[last]
        leads.setdefault(last, []).append(lead)
        stretch = lost[place * STRETCHES // len(whole)]
        stretch[last] = stretch.get(last, 0.0) + lead
    return [
        Lateness(
            rank=rank,
            calls=calls[rank],
            last=len(leads.get(rank, ())),
            median=statistics.median(leads.get(rank, (0.0,))),
            lost=sum(leads.get(rank, ())),
            span=max(spans[rank]) - min(spans[rank]),
            led=sum(each.get(rank, 0.0) > sum(each.values()) / 2 for each in lost),
        )
        for rank in sorted(calls)
    ]


def slowest(found: Iterable[Lateness]) -> Lateness | None:
    """Returns the rank that the others waited for longest, or None if they waited for no rank."""
    late = max(found, key=lambda each: each.lost, default=None)
    return late if late is not None and late.lost > 0 else None
