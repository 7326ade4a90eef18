"""Going on after an error: the ranks that are left form a group in a pool of their own.

What died may have died in the middle of anything, so nothing of the old pool is used again but to
agree, in memory that needs nobody but those who are left (cc/comm/regroup.h):

1. Every process joins an *attempt*, 1 at first.
2. Once all processes have joined that are not lost, the lowest rank decides who goes on. It
   creates another pool and says where it is.
3. These register in it. Who sees all of them registered goes on; registrations stay, so that
   either all see it or none. If one is lost before it registers, all join the next attempt.

With `rejoin`, 2 waits for successors of the lost as well, and whoever decides tells them where to
go (_rejoin.py).

Another death at any time is thus another attempt, or found by the new pool, and never a hang.
"""

import functools
import json
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax

from jax_cxl import _config, _core, _platform, _pools, _rejoin, _runtime, errors
from jax_cxl._launch import environment as launch_environment

_POLL_SECONDS = 0.002


def regroup(
    devices: Sequence[Any] | None = None,
    *,
    rejoin: bool = False,
    pool: str | None = None,
    timeout: float | None = None,
) -> list[Any]:
    """Goes on, after an error, with the processes that are left.

    Every process that is left has to call it, and to wait for nothing else of the others before.
    It returns once all have. Ranks keep their numbers: indices into `jax.devices()`. Arrays on
    this process's devices stay as they are; those that were spread over lost devices are lost.
    JAX's caches are cleared, because programs from before must not communicate any more: they
    raise `NotInitializedError`.

    JAX itself ends the processes that are left unless it runs with `JAX_ENABLE_RECOVERABILITY=1`;
    if process 0 is lost, it does so within a second unless its coordination service is elsewhere.
    `python -m jax_cxl.launch --go-on` sees to both.

    Args:
      devices: those that may go on, by default all whose processes live: gives up ranks that live
        but are stuck. The same in all processes.
      rejoin: waits for successors of the lost processes, which `python -m jax_cxl.launch
        --restart-lost N` starts. They join by `jax_cxl.initialize`. The same in all processes.
      pool: URI of the pool to go on in, by default another one like the old. Pools on dax devices,
        and in files that stay, have to be given another place.
      timeout: seconds to wait for ranks that live, by default `JAX_CXL_TIMEOUT`.

    Returns:
      The devices that go on, in the order of `jax.devices()`. Make a mesh of them.

    Raises:
      CollectiveTimeoutError: a rank lives, but has not called `regroup`, or has no successor;
        call it again, or without that rank's device.
      PoolError: the new pool cannot be created.
      NotInitializedError: jax_cxl does not run, or the others have gone on without this process.
      CxlError: on GPUs, where an error ends the use of the device; start all processes again.

    Example:
      >>> try:
      ...     state = step(state)
      ... except jax_cxl.PeerLostError:
      ...     devices = jax_cxl.regroup()
      ...     mesh = jax.make_mesh((len(devices),), ("i",), devices=devices)
    """
    with _runtime.lock:
        running = _runtime.current()
        if running is None:
            raise errors.NotInitializedError(
                "jax_cxl.regroup() needs the pool that the error was in: call it before"
                " jax_cxl.shutdown()."
            )
        if running.platform is not _platform.CPU:
            raise errors.CxlError(
                "jax_cxl.regroup() works between CPU devices: on a GPU, the error has ended the use"
                " of the device. Start all processes again, from a checkpoint."
            )
        seconds = _config.from_environment().timeout if timeout is None else timeout
        uri = running.uri if pool is None else pool
        if rejoin and not launch_environment.restarts_lost():
            raise errors.CxlError(
                "jax_cxl.regroup(rejoin=True) waits for processes that only python -m"
                " jax_cxl.launch --restart-lost N starts."
            )
        deadline = time.monotonic() + seconds
        meeting = _Agreement(running, _ranks(devices), rejoin, uri, deadline).reach()
        _runtime.restart(meeting, uri)
        jax.clear_caches()
        _warn_of_jax(meeting.members)
    return [jax.devices()[rank] for rank in meeting.members]


def _ranks(devices: Sequence[Any] | None) -> list[int]:
    """Returns the ranks of the devices, all by default."""
    everyone = list(jax.devices())
    ranks = sorted(everyone.index(device) for device in (devices or everyone))
    if not set(ranks) & set(_pools.local_ranks()):
        raise ValueError(f"none of the devices is one of this process's: {devices}")
    return ranks


class _Agreement:
    """This process's part in agreeing on who goes on, and in which pool."""

    def __init__(
        self,
        running: _runtime.Runtime,
        ranks: list[int],
        rejoin: bool,
        uri: str | None,
        deadline: float,
    ):
        self._running = running
        self._ranks = ranks
        self._rejoin = rejoin
        self._mine = [rank for rank in _pools.local_ranks() if rank in ranks]
        self._uri = uri
        self._deadline = deadline
        self._created: _core.Pool | None = None  # By this process, if it decided.

    def reach(self) -> _pools.Meeting:
        """Returns the pool where all that go on have met."""
        while True:
            self._created = None
            for rank in self._mine:
                _core.join_attempt(rank, self._running.attempt)
            members, plan = self._wait(self._decision, "called jax_cxl.regroup()")
            place, tickets = plan["place"], plan["tickets"]
            if "error" in place:
                self._running.attempt += 1  # The same for all: what was decided stays.
                raise errors.from_code(place["error"], place["message"])
            if not set(self._mine) <= set(members):
                raise errors.NotInitializedError(
                    f"ranks {members} have gone on without this process's, {self._mine}: all"
                    " have to call jax_cxl.regroup() with the same devices"
                )
            pool = self._created or _pools.attach(place)
            _pools.register(pool, self._mine)
            arrival = functools.partial(self._arrival, pool, members, tickets)
            complete = self._wait(arrival, "come to the new pool")
            _pools.remove_name(pool, place, self._uri)
            if complete:
                return _pools.Meeting(pool, members, self._running.generation + 1)
            self._running.attempt += 1

    def _decision(self) -> tuple[Any, list[int]]:
        """Returns what has been decided, else None; and whom that waits for."""
        attempt = self._running.attempt
        # In this order: what a rank did before it was lost counts.
        left = [rank for rank in self._ranks if not _core.rank_lost(rank)]
        for rank in range(jax.device_count()):
            found: Any = _core.decided_attempt(rank, attempt)
            if found is not None:
                return (found[0], _read(found[1])), []
        awaited = [rank for rank in left if not _core.joined_attempt(rank, attempt)]
        if awaited or left[0] not in self._mine:
            return None, awaited or left[:1]
        lost = [rank for rank in self._ranks if rank not in left] if self._rejoin else []
        tickets = _rejoin.tickets() if lost else {}
        joining = {_process_of(rank) for rank in lost}
        ready = joining & _rejoin.unanswered(tickets) if lost else set()
        if ready != joining:
            return None, [rank for rank in lost if _process_of(rank) not in ready]
        members = sorted(left + lost)
        place = self._create()
        if lost:
            generation = self._running.generation + 1
            _rejoin.answer(tickets, joining, members, place, generation)
        plan = {"place": place, "tickets": {str(p): tickets[str(p)] for p in joining}}
        _core.decide_attempt(left[0], attempt, members, json.dumps(plan))
        return None, left[:1]

    def _arrival(
        self, pool: _core.Pool, members: list[int], tickets: dict[str, str]
    ) -> tuple[bool | None, list[int]]:
        """Returns whether all members are in the pool, None while some may still come; and whom
        that waits for."""
        # In this order: what a rank did before it was lost counts.
        lost = any(
            _core.rank_lost(rank) for rank in members if str(_process_of(rank)) not in tickets
        )
        if tickets:
            lost |= not tickets.items() <= _rejoin.tickets().items()
        missing = [rank for rank in members if not pool.registered(rank)]
        if missing and not lost:
            return None, missing
        return not missing, missing

    def _create(self) -> dict[str, Any]:
        """Creates the new pool; returns its place."""
        try:
            self._created, place = _pools.create(self._uri, self._running.platform, new_name=True)
        except errors.PoolInUseError as error:
            hint = f"{error}; jax_cxl.regroup(pool=...) has to name another place than the old one"
            return _pools.no_place(errors.PoolInUseError(hint))
        except Exception as error:
            return _pools.no_place(error)
        return place

    def _wait(self, look: Callable[[], tuple[Any, list[int]]], awaited: str) -> Any:
        """Returns what `look` finds, once it finds something."""
        while True:
            found, missing = look()
            if found is not None:
                return found
            if time.monotonic() > self._deadline:
                who = _core.rank_name(missing[0])
                error = errors.CollectiveTimeoutError(
                    f"{who} is gone, and its successor has not come in time"
                    if _core.rank_lost(missing[0])
                    else f"{who} lives, but has not {awaited} in time"
                )
                error.rank = missing[0]
                raise error
            time.sleep(_rejoin.POLL_SECONDS if self._rejoin else _POLL_SECONDS)


def _process_of(rank: int) -> int:
    return jax.devices()[rank].process_index


def _read(text: str) -> dict[str, Any]:
    """Reads what a rank has decided."""
    try:
        plan = json.loads(text)
        if isinstance(plan["place"], dict) and isinstance(plan["tickets"], dict):
            return plan
    except (ValueError, TypeError, KeyError):
        pass
    raise errors.PoolCorruptError(f"what a rank has decided is damaged: {text!r}")


def _warn_of_jax(members: Sequence[int]) -> None:
    """Says that JAX is going to end this process, if it is."""
    config: Any = jax.config  # Options are attributes that type checkers do not know.
    if launch_environment.goes_on() or config.jax_enable_recoverability:
        return
    if len(members) < jax.device_count():
        logging.getLogger("jax_cxl").warning(
            "a process is gone, and JAX will end the others some 100 s later. Start all of them"
            " with JAX_ENABLE_RECOVERABILITY=1, or by python -m jax_cxl.launch --go-on."
        )
