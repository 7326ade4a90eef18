"""Tickets, with which the successor of a lost process finds the other processes.

The launcher starts a successor. A successor does not know the pool that the other processes use.
It meets the others in JAX's key-value store, which the launcher hosts:

    jax_cxl/ticket/P   the ticket of process P, "G.F.R". G is the generation of the runtime that
                       the process had, -1 for none. F is 1 if a rank of that runtime gave up. R is
                       random, and new for each try.
    jax_cxl/answer/T   for the holder of ticket T: which pool to attach to

Processes that regroup (regroup.py) wait for an unanswered ticket of each lost process, and the
rank that decides answers it. If every process has an unanswered ticket, because the job starts or
because no process survived, process 0 decides. If the ticket of a process has changed since the
decision, that process was lost in between, and all try again.
"""

import json
import secrets
import time
from collections.abc import Iterable, Sequence
from typing import Any

import jax

from jax_cxl import _compat, _core, errors
from jax_cxl._job import platforms
from jax_cxl._job.launched import environment as launch_environment
from jax_cxl._job.launched.board import FINISHED
from jax_cxl._job.meeting import arrival
from jax_cxl._job.pool import pool_uri, pools

POLL_SECONDS = 0.02

_TICKETS = "jax_cxl/ticket"
_ANSWERS = "jax_cxl/answer"


def tickets() -> dict[str, str]:
    """Returns the ticket of each process that has one."""
    return _compat.distributed.entries(_TICKETS)


def unanswered(found: dict[str, str]) -> set[int]:
    """Returns the processes whose tickets nobody has answered."""
    answered = _compat.distributed.entries(_ANSWERS)
    return {int(process) for process, ticket in found.items() if ticket not in answered}


def answer(
    found: dict[str, str],
    processes: set[int],
    members: Sequence[int],
    place: dict[str, Any],
    generation: int,
) -> None:
    """Tells the holders of some tickets which pool to attach to.

    Args:
      found: all tickets.
      processes: the processes whose tickets to answer.
      members: the ranks that continue.
      place: where their pool is.
      generation: the generation of the runtime; see `lifecycle.Runtime`.
    """
    decision = {"tickets": found, "members": list(members), "place": place}
    text = json.dumps(decision | {"generation": generation})
    for process in processes:
        _compat.distributed.client().key_value_set(f"{_ANSWERS}/{found[str(process)]}", text)


def join(
    spec: pool_uri.PoolSpec, platform: platforms.Platform, generation: int, failed: bool
) -> pools.Meeting:
    """Meets the other processes. `generation` and `failed` are parts of this process's ticket."""
    client = _compat.distributed.client()
    deadline = time.monotonic() + arrival.TIMEOUT_SECONDS
    created: _core.Pool | None = None
    while True:
        ticket = f"{generation}.{failed:d}.{secrets.token_hex(8)}"
        client.key_value_set(f"{_TICKETS}/{jax.process_index()}", ticket, allow_overwrite=True)
        text = None
        while text is None:
            _check(deadline, "no process has answered")
            if jax.process_index() == 0:
                created = _begin(spec, platform) or created
            text = _compat.distributed.key_value(f"{_ANSWERS}/{ticket}")
        decision = json.loads(text)
        place, members = decision["place"], decision["members"]
        pool = created or pools.attach(place)
        pools.register(pool, pools.local_ranks())
        while True:
            # First read the tickets, then the pool: a process that registered before it was lost
            # counts as registered.
            changed = tickets() != decision["tickets"]
            missing = [rank for rank in members if not pool.registered(rank)]
            if not missing or changed:
                break
            _check(deadline, f"rank {missing[0]} has not joined the pool")
        pools.remove_name(pool, place, spec)
        if not missing:
            pools.check_hosts(pool, members, place)
            return pools.Meeting(pool, members, decision["generation"])
        created = None


def _begin(spec: pool_uri.PoolSpec, platform: platforms.Platform) -> _core.Pool | None:
    """Creates the pool and answers all tickets, once every process has an unanswered one."""
    found = tickets()
    everyone = unanswered(found)
    if len(everyone) < jax.process_count():
        return None
    try:
        pool, place = pools.create(spec, platform)
    except Exception as error:
        # The others wait for the place of the pool. Give them the error instead.
        answer(found, everyone, [], pools.no_place(error), 0)
        raise
    answer(found, everyone, range(jax.device_count()), place, _next_generation(found.values()))
    return pool


def _next_generation(found: Iterable[str]) -> int:
    """Returns the generation of the runtime that the holders of these tickets start.

    If all processes come from the same runtime, and it did not fail, no program of it is still
    under way. So its programs stay valid, and the generation stays. Otherwise, for example if one
    process is a successor, all processes need programs of a new generation.
    """
    pasts = {tuple(map(int, ticket.split(".")[:2])) for ticket in found}
    newest, failed = max(pasts)
    return newest if len(pasts) == 1 and newest >= 0 and not failed else newest + 1


def _check(deadline: float, problem: str) -> None:
    board = launch_environment.board
    if board is not None and (ended := board.ranks(FINISHED)):
        raise errors.NotInitializedError(
            f"rank {ended[0]} ended before this process could join the job, so the job is over."
            " Start the job again"
        )
    if time.monotonic() > deadline:
        raise errors.NotInitializedError(
            f"the processes have not met in time: {problem}. Look at what they printed last, and"
            " start the job again"
        )
    time.sleep(POLL_SECONDS)
