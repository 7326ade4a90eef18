"""Finds which rank of a job the others wait for, from the flight recorders."""

import dataclasses
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from jax_cxl import _core
from jax_cxl._job import lateness, process_identity

# A rank has a heartbeat every 0.1 s. A process without a heartbeat for this long is not running.
_SILENCE_SECONDS = 0.5
# How long to watch the heartbeats of ranks on other hosts.
_WATCH_SECONDS = 0.6

# The recorder of a rank holds at most this many calls.
_ALL_CALLS = 4096


@dataclasses.dataclass
class Rank:
    """The state of a rank when the pool was read.

    Attributes:
      state: "running", "stopped", "gone", "ended" (the launcher ended it), or "unknown" (a process
        of another host that had no heartbeat while this process watched).
      silent: seconds from its last known heartbeat to the latest heartbeat of any rank on its host.
        Clocks of different hosts are never compared.
    """

    record: dict[str, Any]
    state: str
    stuck: dict[str, Any] | None = None
    waits_for: list[int] = dataclasses.field(default_factory=list)
    silent: float = 0.0
    late: lateness.Lateness | None = None

    @property
    def number(self) -> int:
        return self.record["rank"]

    @property
    def name(self) -> str:
        return f"rank {self.number} (pid {self.record['pid']} on host {self.record['host']})"

    @property
    def last_call(self) -> dict[str, Any] | None:
        calls = self.record["calls"]
        return self.stuck or (calls[-1] if calls else None)

    def progress(self) -> tuple[str, str]:
        """Returns two texts: the rank's last call with its stage, and the time in this stage."""
        call = self.last_call
        if call is None:
            return "none", ""
        stage = "in it" if call["started"] else "submitted"
        if call["finished"]:
            stage = "finished" if call["code"] == "OK" else call["code"]
        moment = call["finished"] or call["started"] or call["submitted"]
        since = f"{self.seconds_since(moment):.1f} s"
        return f"{call['number']}: {described(call)} ({stage})", since

    def seconds_since(self, moment: float) -> float:
        """Returns how long ago a moment in this rank's record was.

        The result is the sum of two times: from the moment to the rank's last heartbeat, and from
        that heartbeat until now. Each is the difference of two times of one host's clock, so clocks
        of different hosts are not compared.
        """
        passed = self.silent
        if process_identity.on_this_kernel(self.record):
            passed = time.monotonic() - self.record["last_sign_of_life_steady"]
        return max(self.record["last_sign_of_life"] - moment + passed, 0.0)

    @property
    def down(self) -> bool:
        return self.state in ("stopped", "gone") or self.silent > _SILENCE_SECONDS

    @property
    def over(self) -> bool:
        return self.state in ("gone", "ended")


@dataclasses.dataclass(frozen=True)
class Job:
    """A job, and the ranks that keep it from continuing.

    Attributes:
      culprits: ranks that keep a job from continuing, with a text about each. Such a rank is gone,
        stopped or silent, or has made the job fail. Empty if nothing is wrong, or if the ranks wait
        for each other in a cycle.
      late: ranks that others wait for in a healthy job, with a text about each. Such a rank runs,
        but has not started the call that the others are in.
    """

    ranks: Sequence[Rank]
    culprits: dict[int, str]
    late: dict[int, str]


def watch(copy: Callable[[], "_core.JobRecord"]) -> Job:
    """Reads a job, which may run on several hosts.

    `copy` returns a copy of the pool. If there are ranks on other hosts, it is called twice, so
    that the number of heartbeats in between shows which of them are alive.
    """
    first = copy()
    records = [first.rank(rank, 0) for rank in range(first.world_size)]
    others = [record for record in records if not process_identity.on_this_kernel(record)]
    if not others:
        return read(first)
    time.sleep(_WATCH_SECONDS)
    second = copy()
    beaten = {
        record["rank"]: second.rank(record["rank"], 0)["heartbeat"] - record["heartbeat"]
        for record in others
    }
    return read(second, beaten=beaten)


def read(
    job_record: "_core.JobRecord",
    calls: int = _ALL_CALLS,
    beaten: Mapping[int, int] | None = None,
    ended: Collection[int] = (),
) -> Job:
    """Reads a job from a copy of its pool: the last `calls` of each rank.

    `beaten` has the heartbeats of ranks on other hosts within `_WATCH_SECONDS`, and `ended` the
    process ids of the ranks that the launcher has ended.
    """
    records = [job_record.rank(rank, calls) for rank in range(job_record.world_size)]
    ranks = [Rank(record, process_state(record)) for record in records]
    for rank in ranks:
        if rank.state == "gone" and rank.record["pid"] in ended:
            rank.state = "ended"
    return analyze(ranks, beaten)


def process_state(record: dict[str, Any]) -> str:
    """Returns the state of a rank's process: see `Rank.state`."""
    if not record["registered"] or not process_identity.pid_means_the_same(record):
        return "unknown"
    fields = process_identity.stat_of(record["pid"])
    if not fields or int(fields[19]) != record["process_start"]:
        return "gone"
    return "stopped" if fields[0] in (b"T", b"t") else "running"


def _measure_silence(ranks: list[Rank], beaten: Mapping[int, int] | None) -> None:
    latest: dict[str, float] = {}
    for rank in ranks:
        host, sign = rank.record["boot_id"], rank.record["last_sign_of_life_steady"]
        latest[host] = max(latest.get(host, sign), sign)
    for rank in ranks:
        rank.silent = latest[rank.record["boot_id"]] - rank.record["last_sign_of_life_steady"]
        if beaten and rank.state == "unknown" and beaten.get(rank.number, 0) > 0:
            rank.state = "running"
        # If no rank on another host had a heartbeat, the job is over and its pool no longer
        # changes. Then the missing heartbeats of a single rank mean nothing.
        if beaten and any(beaten.values()) and beaten.get(rank.number) == 0:
            rank.silent = max(rank.silent, _WATCH_SECONDS)


def analyze(ranks: list[Rank], beaten: Mapping[int, int] | None = None) -> Job:
    """Finds which ranks each rank waits for, and the ranks at the ends of these chains of waits."""
    _measure_silence(ranks, beaten)
    for rank in ranks:
        # A rank is stuck in its first call that failed or did not finish.
        calls = rank.record["calls"]
        unfinished = (call for call in calls if not call["finished"] or call["code"] != "OK")
        rank.stuck = next(unfinished, None)
    started = [
        {(call["group"], call["identity"]) for call in rank.record["calls"]} for rank in ranks
    ]
    for late in lateness.of_ranks([rank.record for rank in ranks]):
        ranks[late.rank].late = late
    for rank in ranks:
        if rank.stuck is not None:
            rank.waits_for = _waits_for(rank, rank.stuck, started)
    ends = _ends(ranks)
    failed = any(rank.record["gave_up"] or rank.over for rank in ranks)
    is_late = {end.number: not failed and not end.down for end in ends}
    return Job(
        ranks,
        culprits={end.number: _why(end) for end in ends if not is_late[end.number]},
        late={end.number: _why(end) for end in ends if is_late[end.number]},
    )


def _waits_for(rank: Rank, call: dict[str, Any], started: list[set[tuple[int, int]]]) -> list[int]:
    members = rank.record["groups"].get(call["group"], [])
    if not call["started"]:
        missing = [m for m in members if (call["group"], call["identity"]) not in started[m]]
        if missing:
            return missing
    waits_for = call["waiting_for"]
    return [waits_for] if 0 <= waits_for < len(started) and waits_for != rank.number else []


def _ends(ranks: list[Rank]) -> list[Rank]:
    """Returns the ranks at the ends of all chains of waits: they keep the others waiting."""
    gave_up = {rank.number for rank in ranks if rank.record["gave_up"]}
    all_over = all(rank.over for rank in ranks)
    ends: dict[int, Rank] = {}
    for rank in ranks:
        seen, chain = {rank.number}, [rank]
        while chain and rank.stuck is not None:
            for number in chain.pop().waits_for:
                if number in seen:
                    continue
                seen.add(number)
                other = ranks[number]
                fell = other.down and number not in gave_up and not all_over
                if fell or other.silent > _SILENCE_SECONDS or other.stuck is None:
                    ends[number] = other
                else:
                    chain.append(other)
    # A rank that gave up has an error about another rank. That other rank may have ended without an
    # error of its own. Then it is the end of a chain, too.
    for rank in ranks:
        if gave_up and rank.number not in gave_up and rank.state == "gone" and rank.stuck:
            ends[rank.number] = rank
    return list(ends.values())


def _why(rank: Rank) -> str:
    """Returns the text about a rank that others wait for."""
    words = {"gone": "is gone", "stopped": "is stopped", "ended": "was ended by the launcher"}
    state = words.get(rank.state, "is in no collective")
    if rank.state == "ended" and rank.stuck is None:
        state = "was in no collective when the launcher ended it"
    if rank.state in ("running", "unknown") and rank.silent > _SILENCE_SECONDS:
        state = f"has given no sign of life for {rank.silent:.1f} s"
    call = rank.last_call
    if call is None:
        return f"{rank.name} {state}; it had not called any collective"
    did = "it was in" if rank.stuck else "it had finished"
    return f"{rank.name} {state}; {did} its call {call['number']}, {described(call)}"


def described(call: dict[str, Any]) -> str:
    """Returns a description of a call, with its line in the user's program if that is known."""
    return f"{call['what']} at {call['site']}" if call["site"] else call["what"]


def sentences(job: Job) -> list[str]:
    """Returns a sentence for each rank that waits, and one for each culprit and each late rank."""
    lines = []
    for rank in job.ranks:
        if rank.stuck is None:
            continue
        others = ", ".join(job.ranks[number].name for number in rank.waits_for)
        what = f"call {rank.stuck['number']}, {described(rank.stuck)}"
        lines.append(f"{rank.name} was in {what}" + (f", and waited for {others}" * bool(others)))
    return lines + verdicts(job)


def verdicts(job: Job) -> list[str]:
    """Returns a sentence for each culprit, and one for each late rank of a healthy job."""
    lines = [f"culprit: {why}" for why in job.culprits.values()]
    return lines + [f"the others wait: {why}" for why in job.late.values()]
