"""How processes meet where the launcher starts lost ones again: by tickets.

A successor of a lost process knows nothing of the pool that the others have. They meet in JAX's
key-value store, which no process of the job hosts there:

    jax_cxl/ticket/P   the ticket of process P, G.R: the generation of the runtime that it had, -1
                       for none, and something random, another for each try to join
    jax_cxl/answer/T   to the holder of ticket T: which pool to go to

Those who regroup (_regroup.py) wait for an unanswered ticket of each lost process, and whoever
decides answers it. Where every process has an unanswered ticket, because the job starts or nobody
is left, process 0 decides. A process whose ticket is another than it was in the decision has been
lost since: then all try again.
"""

import json
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax

from jax_cxl import _compat, _core, _platform, _pools, errors

POLL_SECONDS = 0.02

_TICKETS = "jax_cxl/ticket/"
_ANSWERS = "jax_cxl/answer/"


def tickets() -> dict[str, str]:
    """Returns the ticket of each process that has one."""
    entries = _client().key_value_dir_get(_TICKETS)
    return {key.rpartition("/")[2]: ticket for key, ticket in entries}


def unanswered(found: Mapping[str, str]) -> set[int]:
    """Returns the processes whose tickets nobody has answered."""
    answered = {key.rpartition("/")[2] for key, _ in _client().key_value_dir_get(_ANSWERS)}
    return {int(process) for process, ticket in found.items() if ticket not in answered}


def answer(
    found: Mapping[str, str],
    processes: set[int],
    members: Sequence[int],
    place: dict[str, Any],
    generation: int,
) -> None:
    """Tells these processes where to go.

    Args:
      found: all tickets.
      processes: whose tickets to answer.
      members: the ranks that go on.
      place: of their pool.
      generation: of the runtime, see `_runtime.Runtime`.
    """
    decision = {"tickets": dict(found), "members": list(members), "place": place}
    text = json.dumps(decision | {"generation": generation})
    for process in processes:
        _client().key_value_set(_ANSWERS + found[str(process)], text)


def join(uri: str | None, platform: _platform.Platform, generation: int) -> _pools.Meeting:
    """Meets the other processes.

    Args:
      uri: of the pool, should this process have to create it.
      platform: that of the devices.
      generation: of the runtime that this process had, -1 for none.
    """
    deadline = time.monotonic() + _compat.MEETING_TIMEOUT_MS / 1000
    created: _core.Pool | None = None
    while True:
        ticket = f"{generation}.{secrets.token_hex(8)}"
        _client().key_value_set(f"{_TICKETS}{jax.process_index()}", ticket, allow_overwrite=True)
        text = None
        while text is None:
            _check(deadline, "no process has answered")
            if jax.process_index() == 0:
                created = _begin(uri, platform) or created
            text = _compat.key_value(f"{_ANSWERS}{ticket}")
        decision = json.loads(text)
        place, members = decision["place"], decision["members"]
        pool = created or _pools.attach(place)
        _pools.register(pool, _pools.local_ranks())
        while True:
            # In this order: what a process did before it was lost counts.
            changed = tickets() != decision["tickets"]
            missing = [rank for rank in members if not pool.registered(rank)]
            if not missing or changed:
                break
            _check(deadline, f"rank {missing[0]} has not come to the pool")
        _pools.remove_name(pool, place, uri)
        if not missing:
            return _pools.Meeting(pool, members, decision["generation"])
        created = None


def _begin(uri: str | None, platform: _platform.Platform) -> _core.Pool | None:
    """Creates the pool and tells all where it is, if all have tickets that nobody has answered."""
    found = tickets()
    everyone = unanswered(found)
    if len(everyone) < jax.process_count():
        return None
    try:
        pool, place = _pools.create(uri, platform)
    except Exception as error:
        # The others would wait for the pool: let them fail for the same reason.
        answer(found, everyone, [], _pools.no_place(error), 0)
        raise
    answer(found, everyone, range(jax.device_count()), place, _next_generation(found.values()))
    return pool


def _next_generation(found: Iterable[str]) -> int:
    """Returns the generation of a runtime that the holders of these tickets start.

    Those who have all been in one of the same have launched its programs equally often. Others,
    successors say, have not, and need programs of another generation.
    """
    generations = {int(ticket.partition(".")[0]) for ticket in found}
    newest = max(generations)
    return newest if len(generations) == 1 and newest >= 0 else newest + 1


def _check(deadline: float, problem: str) -> None:
    if time.monotonic() > deadline:
        raise errors.NotInitializedError(f"the processes have not met in time: {problem}")
    time.sleep(POLL_SECONDS)


def _client() -> Any:
    return _compat.coordination_client()
