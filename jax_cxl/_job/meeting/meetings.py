"""Where the processes that start jax_cxl together meet: who they are, and the pool that they share.

Process 0, or the first one that is left, creates the pool. It tells the others through JAX's
coordination service where the pool is. Once all processes have mapped the pool, its name is
removed.
"""

import json
from collections.abc import Sequence

import jax

from jax_cxl import _compat, _core, _text, errors
from jax_cxl._job import platforms
from jax_cxl._job.meeting import arrival, connection
from jax_cxl._job.pool import pool_uri, pools

# What the next `initialize` needs to know of earlier runtimes. The first two are equal in all
# processes that meet, because these have called `initialize` and `regroup` equally often.
_generation = -1  # of the last runtime; -1 if there was none
_members: Sequence[int] | None = None  # the ranks that have continued after an error; None: all
_lost: Sequence[int] = ()  # ranks whose processes had ended before the last shutdown


def processes_left() -> Sequence[int]:
    """Returns the processes that have continued after errors. At first these are all."""
    if _members is None:
        return range(_compat.distributed.process_count())
    return sorted({jax.devices()[rank].process_index for rank in _members})


def check_lost() -> None:
    """Raises if a rank that `initialize` would wait for is lost."""
    if not _lost:
        return
    were = "was" if len(_lost) == 1 else "were"
    raise errors.NotInitializedError(
        f"{_text.numbered('rank', _lost)} {were} lost before jax_cxl.shutdown(), and"
        " jax_cxl.initialize() waits for all ranks that communicated. To continue without lost"
        " ranks, call jax_cxl.regroup() before jax_cxl.shutdown(). Now all processes have to start"
        " again."
    )


def come_together(spec: pool_uri.PoolSpec, platform: platforms.Platform) -> pools.Meeting:
    """Meets the other processes that are left."""
    before = _generation
    devices = jax.devices()
    everyone = range(len(devices))
    members = everyone if _members is None else _members
    processes = sorted({devices[rank].process_index for rank in members})
    if len(processes) > 1:
        connection.check_open_files(len(processes))
    generation = max(before, 0)
    if before >= 0 and len(processes) > 1:
        # The processes may have launched a program different numbers of times: before they shut
        # down, or while jax_cxl was not running. Calls of the ranks are matched by these numbers,
        # so all ranks need newly compiled programs.
        generation += 1
    pool = _meet(spec, platform, processes, members)
    if 0 <= before < generation:
        jax.clear_caches()  # Programs that were compiled before must not communicate.
    return pools.Meeting(pool, members, generation)


def remember(meeting: pools.Meeting) -> None:
    """Remembers who has met, for the next `initialize`."""
    global _generation, _members
    _generation = meeting.generation
    everyone = len(meeting.members) == jax.device_count()
    _members = None if everyone else list(meeting.members)


def note_end(lost: Sequence[int]) -> None:
    """Remembers which ranks were lost when a runtime of this process ended."""
    global _lost
    _lost = lost


def somebody_was_lost() -> bool:
    """Returns whether this process has noticed that another process was lost."""
    return bool(_lost) or _members is not None


def _meet(
    spec: pool_uri.PoolSpec,
    platform: platforms.Platform,
    processes: Sequence[int],
    members: Sequence[int],
) -> _core.Pool:
    """Maps the pool in these processes. Returns once all their ranks have registered in it."""
    client = _compat.distributed.client() if len(processes) > 1 else None
    key = f"jax_cxl/pool/{arrival.attempt()}"
    first = jax.process_index() == processes[0]
    if first:
        try:
            pool, place = pools.create(spec, platform)
        except Exception as error:
            if client is not None:
                # The others wait for the place of the pool. Give them the error instead.
                client.key_value_set(key, json.dumps(pools.no_place(error)))
            raise
        if client is not None:
            client.key_value_set(key, json.dumps(place))
    else:
        problem = f"process {processes[0]} has not created the pool"
        place = json.loads(arrival.wait_for_value(key, problem))
        try:
            pool = pools.attach(place)
        except errors.PoolNotFoundError:
            # The name may be missing because another process gave up. Then raise that process's
            # error instead.
            arrival.check_others()
            raise
    try:
        with arrival.telling_failures():  # The others learn of errors before the name is removed.
            pools.register(pool, pools.local_ranks())
            arrival.wait_for(
                lambda: not _missing(pool, members) or None,
                arrival.TIMEOUT_SECONDS,
                lambda: f"{_text.numbered('rank', _missing(pool, members))} did not join the pool",
            )
            pools.check_hosts(pool, members, place)
    except Exception:
        # The process that created the pool may have ended, so this process removes the name.
        pools.remove_name(pool, place, spec)
        raise
    if first:
        pools.remove_name(pool, place, spec)
    return pool


def _missing(pool: _core.Pool, members: Sequence[int]) -> list[int]:
    return [rank for rank in members if not pool.registered(rank)]
