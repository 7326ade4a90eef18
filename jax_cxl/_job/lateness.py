"""Finds stragglers: ranks that the other ranks wait for.

The rank that joins a call last waits the least in the call. The difference between its wait and the
second shortest wait is the time that the other ranks lost because of this rank alone. Each rank
measures its wait with its own clock, so clocks of different hosts need not agree.

While a job runs, the process of its first rank looks at the flight recorders of all ranks once a
minute, as `python -m jax_cxl status` does. It warns of a rank that was persistently late in two
consecutive minutes. It warns of each rank once.
"""

import contextlib
import dataclasses
import logging
import os
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from jax_cxl import _core, errors

# A running job looks at the recorders once in this many seconds.
INTERVAL = 60.0
_CALLS = 4096  # A recorder holds no more calls.

# The calls are divided into STRETCHES parts. A rank leads a part if the others waited longer for it
# than for all other ranks together. It is persistently late if it leads at least LED parts, and if
# the others waited for it for at least SHARE_OF_TIME of the whole time. If two ranks do equal work,
# each leads a part with a probability of at most one half. Then it leads LED parts by chance with a
# probability of less than 1 in 200,000.
STRETCHES = 30
LED = 27
SHARE_OF_TIME = 0.05
FEWEST_CALLS = 100

_stopped = threading.Event()
_thread: threading.Thread | None = None


@dataclasses.dataclass(frozen=True)
class Lateness:
    """How late a rank joined its calls. Only calls that are in the recorders of all members count.

    Attributes:
      rank: the rank.
      calls: number of calls.
      last: how many of them it joined last.
      median: median of the seconds by which it joined later than the second latest rank, over the
        calls that it joined last.
      lost: total seconds that the others waited only for this rank.
      span: seconds from the first of the calls to the end of the last one.
      led: in how many of the STRETCHES parts of the calls the others waited longer for this rank
        than for all other ranks together.
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
        """Whether the rank leads most parts of the calls, and costs the other ranks much time."""
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
    """Returns the lateness of each rank that shares calls with others, by rank.

    `records` come from `_core.JobRecord.rank`. Calls that were submitted before `since`, in seconds
    since 1970, are left out.
    """
    import statistics  # Only now: a job that lasts less than a minute does not need it.

    waits: dict[tuple[int, int, int], dict[int, float]] = defaultdict(dict)
    begins: dict[tuple[int, int, int], float] = {}
    spans: dict[int, list[float]] = defaultdict(list)
    for record in records:
        rank = record["rank"]
        seen: Counter[tuple[int, int]] = Counter()
        for call in record["calls"]:
            program = call["group"], call["identity"]
            seen[program] += 1
            if not call["finished"] or call["code"] != "OK" or call["submitted"] < since:
                continue
            key = (*program, seen[program])
            all_there = call["started"] or call["finished"]
            waits[key][rank] = max(all_there - call["submitted"], 0.0)
            begins.setdefault(key, call["submitted"])
            spans[rank] += call["submitted"], call["finished"]
    groups = {key: members for record in records for key, members in record["groups"].items()}
    # Use the calls that every member's recorder still holds. Recorders overwrite old calls.
    whole = sorted(
        (key for key, by_rank in waits.items() if 1 < len(by_rank) == len(groups.get(key[0], ()))),
        key=begins.__getitem__,
    )
    leads: dict[int, list[float]] = defaultdict(list)
    calls: Counter[int] = Counter()
    lost: list[dict[int, float]] = [defaultdict(float) for _ in range(STRETCHES)]
    for place, key in enumerate(whole):
        by_rank = waits[key]
        calls.update(by_rank.keys())
        last, second = sorted(by_rank, key=by_rank.__getitem__)[:2]
        lead = by_rank[second] - by_rank[last]
        leads[last].append(lead)
        lost[place * STRETCHES // len(whole)][last] += lead
    return [
        Lateness(
            rank=rank,
            calls=calls[rank],
            last=len(leads[rank]),
            median=statistics.median(leads[rank] or [0.0]),
            lost=sum(leads[rank]),
            span=max(spans[rank]) - min(spans[rank]),
            led=sum(each[rank] > sum(each.values()) / 2 for each in lost),
        )
        for rank in sorted(calls)
    ]


def watch(opened_file: tuple[int, int], members: Sequence[int]) -> None:
    """Starts the thread that warns of late ranks among `members`.

    `opened_file` comes from `Pool.opened_file`: the descriptor of the pool's file, and the offset
    of the pool in it.
    """
    global _stopped, _thread
    _stopped = threading.Event()
    fd, offset = opened_file
    _thread = threading.Thread(
        # The thread gets a descriptor of its own, because the pool closes its descriptor when the
        # job shuts down.
        target=_look,
        args=(_stopped, os.dup(fd), offset, members),
        name="jax_cxl late ranks",
        daemon=True,
    )
    _thread.start()


def stop_watching() -> None:
    """Ends the thread of `watch`, if there is one."""
    _stopped.set()
    if _thread is not None:
        _thread.join()


def _look(stopped: threading.Event, fd: int, offset: int, members: Sequence[int]) -> None:
    since = time.time()
    before: set[int] = set()
    warned: set[int] = set()
    while not stopped.wait(INTERVAL):
        with contextlib.suppress(errors.CxlError):
            job_record = _core.read_job_record(fd, offset, "the pool")
            ranks = of_ranks([job_record.rank(rank, _CALLS) for rank in members], since)
            since = time.time()
            late = {each.rank: each for each in ranks if each.persistent}
            for rank in (late.keys() & before) - warned:
                logging.getLogger("jax_cxl").warning("persistently late: %s", late[rank].sentence())
                warned.add(rank)
            before = set(late)
    os.close(fd)
