"""Where the processes that start jax_cxl together meet: who they are, and the pool that they share.

Process 0, or the first one that is left, creates the pool and tells the others through JAX's
coordination service where it is. Once all processes have mapped it, its name is removed.
"""

import dataclasses
import json
from collections.abc import Callable, Sequence
from typing import Any

import jax

from jax_cxl import _compat, _core, errors
from jax_cxl._job import platforms
from jax_cxl._job.launched import environment as launch_environment
from jax_cxl._job.meeting import arrival, connection, settings, successor_tickets
from jax_cxl._job.pool import pool_uri, pools


@dataclasses.dataclass
class _Past:
    """Facts about earlier runtimes that the next `initialize` needs. They outlive `shutdown`.

    All attributes except `lost` are equal in all processes that meet, because these processes have
    called `initialize` and `regroup` the same number of times.

    Attributes:
      generation: generation of the last runtime; -1 if there was none.
      starts: how often this process has tried to start a runtime of this generation.
      members: the ranks that have continued after an error; None for all.
      lost: ranks whose processes had ended before the last shutdown.
      failed: whether a rank of this process had given up at the last shutdown.
    """

    generation: int = -1
    starts: int = 0
    members: Sequence[int] | None = None
    lost: Sequence[int] = ()
    failed: bool = False


_past = _Past()


def begin() -> None:
    """Counts an attempt to start, even if it fails: all processes begin the same attempts."""
    _past.starts += 1


def name() -> str:
    """Returns the prefix of the keys of this meeting. It is equal in all processes that meet."""
    return f"jax_cxl/{max(_past.generation, 0)}.{_past.starts}"


def processes_left() -> Sequence[int] | None:
    """Returns the processes that have continued after an error, or None for all processes."""
    if _past.members is None:
        return None
    return sorted({jax.devices()[rank].process_index for rank in _past.members})


def check_lost() -> None:
    """Raises if a rank that `initialize` would wait for is lost."""
    successors = launch_environment.restarts_lost() and _past.members is None
    if not _past.lost or successors:
        return
    ranks = ", ".join(map(str, _past.lost))
    who = f"rank {ranks} was" if len(_past.lost) == 1 else f"ranks {ranks} were"
    raise errors.NotInitializedError(
        f"{who} lost before jax_cxl.shutdown(), and jax_cxl.initialize() waits for all ranks that"
        " communicated. To continue without lost ranks, call jax_cxl.regroup() before"
        " jax_cxl.shutdown(). Now all processes have to start again."
    )


def come_together(
    spec: pool_uri.PoolSpec, platform: platforms.Platform, tuning: _core.Tuning
) -> pools.Meeting:
    """Meets the other processes that are left.

    Args:
      spec: the pool, parsed from its URI.
      platform: the platform of the devices.
      tuning: this process's tuning table.
    """
    key = name()
    before = _past.generation
    devices = jax.devices()
    everyone = range(len(devices))
    members = everyone if _past.members is None else _past.members
    processes = sorted({devices[rank].process_index for rank in members})
    # Successors of lost processes may be among the others. They count meetings from 0.
    by_tickets = launch_environment.restarts_lost() and _past.members is None
    if len(processes) > 1:
        connection.check_open_files(len(processes))
        place = "jax_cxl" if by_tickets else key
        settings.agree(tuning, place, jax.process_index(), processes[0])
    if by_tickets:
        meeting = successor_tickets.join(spec, platform, before, _past.failed)
    else:
        generation = max(before, 0)
        if before >= 0 and len(processes) > 1:
            generation += _any_failed(key, processes)
        pool = _meet(key, spec, platform, processes)
        meeting = pools.Meeting(pool, members, generation)
    if 0 <= before < meeting.generation:
        jax.clear_caches()  # Programs that were compiled before must not communicate.
    return meeting


def remember(meeting: pools.Meeting) -> None:
    """Remembers who has met, for the next `initialize`."""
    global _past
    if meeting.generation != max(_past.generation, 0):
        _past = _Past(starts=1)
    _past.generation = meeting.generation
    _past.failed = False
    everyone = len(meeting.members) == jax.device_count()
    _past.members = None if everyone else list(meeting.members)


def note_end(lost: Sequence[int], failed: bool) -> None:
    """Remembers how a runtime of this process has ended.

    Args:
      lost: the ranks whose processes are gone.
      failed: whether a rank of this process has given up.
    """
    _past.lost, _past.failed = lost, failed


def somebody_was_lost() -> bool:
    """Returns whether this process has noticed that another process was lost."""
    return bool(_past.lost) or _past.members is not None


def _any_failed(key: str, processes: Sequence[int]) -> bool:
    """Returns whether a rank of any process had given up when it shut down.

    The ranks may then have launched a program a different number of times. Calls are matched by
    these numbers, so the ranks need newly compiled programs.
    """
    client = _compat.distributed.client()
    client.key_value_set(f"{key}/failed/{jax.process_index()}", str(int(_past.failed)))

    def told() -> list[str] | None:
        found = dict(client.key_value_dir_get(f"{key}/failed/"))
        return list(found.values()) if len(found) == len(processes) else None

    return "1" in _wait(told, "not all processes have called jax_cxl.initialize() again")


def _meet(
    key: str,
    spec: pool_uri.PoolSpec,
    platform: platforms.Platform,
    processes: Sequence[int],
) -> _core.Pool:
    """Maps the pool in these processes. Returns once all their ranks have registered in it."""
    client = _compat.distributed.client() if len(processes) > 1 else None
    first = jax.process_index() == processes[0]
    try:
        if first:
            pool, place = pools.create(spec, platform)
            if client is not None:
                client.key_value_set(f"{key}/pool", json.dumps(place))
        else:
            assert client is not None
            text = arrival.wait_for_value(
                f"{key}/pool",
                arrival.TIMEOUT_SECONDS,
                f"process {processes[0]} has not created the pool",
            )
            place = json.loads(text)
            pool = _attach(place)
    except Exception as error:
        if client is not None and first:
            # The others wait for the place of the pool. Give them the error instead.
            client.key_value_set(f"{key}/pool", json.dumps(pools.no_place(error)))
        raise
    try:
        with arrival.telling_failures():  # Before the name is removed: see _attach.
            pools.register(pool, pools.local_ranks())
            if client is not None:
                _await_registered(key, client, processes)
            pools.check_hosts(pool, _ranks_of(processes), place)
    except Exception:
        # The process that created the pool may have ended, so this process removes the name.
        pools.remove_name(pool, place, spec)
        raise
    if first:
        pools.remove_name(pool, place, spec)
    return pool


def _await_registered(key: str, client: Any, processes: Sequence[int]) -> None:
    client.key_value_set(f"{key}/registered/{jax.process_index()}", "")

    def all_registered() -> bool | None:
        entries = client.key_value_dir_get(f"{key}/registered/")
        come = {int(name.rpartition("/")[2]) for name, _ in entries}
        # The service answers as soon as the process comes, sooner than a pause would end.
        return (
            all(
                process in come
                or _compat.distributed.key_value(f"{key}/registered/{process}", 20) is not None
                for process in processes
            )
            or None
        )

    _wait(all_registered, "not all processes have come to the pool")


def _attach(place: dict[str, Any]) -> _core.Pool:
    try:
        return pools.attach(place)
    except errors.PoolNotFoundError:
        # The name may be missing because another process gave up. Then raise its error instead.
        arrival.check_others()
        raise


def _ranks_of(processes: Sequence[int]) -> list[int]:
    return [rank for rank, device in enumerate(jax.devices()) if device.process_index in processes]


def _wait(look: Callable[[], Any], problem: str) -> Any:
    return arrival.wait_for(look, arrival.TIMEOUT_SECONDS, problem)
