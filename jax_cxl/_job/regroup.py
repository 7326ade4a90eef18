"""Regroup: after an error, the surviving ranks continue in a new pool.

A rank may have died in the middle of any operation. So the survivors use the old pool only to agree
on the new one, in words that no lost rank writes (cc/comm/health/regroup.h):

1. Every surviving process joins an *attempt*, at first attempt 1.
2. Once all surviving processes have joined, the lowest rank decides which ranks continue. It
   creates a new pool and writes where that pool is.
3. The processes of these ranks register in the new pool. A process continues once it sees that all
   have registered. Nobody removes a registration, so either all processes see all registrations, or
   none does. If a process is lost before it registers, all others join the next attempt.

If another process dies meanwhile, there is another attempt, or the new pool reports the death. The
survivors never hang.
"""

import contextlib
import dataclasses
import functools
import json
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax

from jax_cxl import _core, errors
from jax_cxl._job import configuration, lifecycle, platforms
from jax_cxl._job.launched import environment as launch_environment
from jax_cxl._job.pool import pool_uri, pools

_POLL_SECONDS = 0.002
# How long `_given_up` looks for lost ranks. The loss of a rank of this host is noticed sooner.
_GIVEN_UP_SECONDS = 2.0


def regroup(
    devices: Sequence[Any] | None = None,
    *,
    pool: str | None = None,
    timeout: float | None = None,
) -> list[Any]:
    """Continues, after an error, with the surviving processes.

    Every surviving process has to call `regroup`, and must not wait for another process first. The
    function returns once all have called it. Ranks keep their numbers, which are indices into
    `jax.devices()`. Arrays on this process's devices stay as they are. Arrays that were spread over
    lost devices are lost. JAX's caches are cleared. A program that was compiled before the call
    raises `NotInitializedError` if it communicates.

    Without `JAX_ENABLE_RECOVERABILITY=1`, JAX itself ends the surviving processes. If process 0 is
    lost, JAX ends them within a second, unless another process hosts its coordination service.
    `python -m jax_cxl.launch --go-on` arranges both.

    Args:
      devices: the devices that may continue, by default all devices of living processes. Leave out
        a device to give up a rank that lives but is stuck. All processes pass the same devices.
      pool: URI of the new pool, by default a new pool of the same kind as the old one. If the old
        pool is on dax devices or in a file that stays, the new pool needs another place.
      timeout: seconds to wait for ranks that live, by default `JAX_CXL_TIMEOUT`.

    Returns:
      The devices that continue, in the order of `jax.devices()`. Make a mesh of them.

    Raises:
      CollectiveTimeoutError: a rank lives but has not called `regroup`. Call `regroup` again, or
        without that rank's device.
      PoolError: the new pool cannot be created.
      NotInitializedError: jax_cxl is not running, or the others have continued without this
        process.
      CxlError: the ranks are GPUs, where an error ends the use of the device. Start all processes
        again.

    Example:
      >>> try:
      ...     state = step(state)
      ... except jax_cxl.PeerLostError:
      ...     devices = jax_cxl.regroup()
      ...     mesh = jax_cxl.make_mesh((len(devices),), ("i",), devices=devices)
    """
    with lifecycle.lock:
        running = lifecycle.current()
        if running is None:
            raise errors.NotInitializedError(
                "jax_cxl.regroup() needs the pool in which the error happened: call it before"
                " jax_cxl.shutdown()."
            )
        if running.platform is not platforms.CPU:
            raise errors.CxlError(
                "jax_cxl.regroup() works between CPU devices only: no GPU is usable after an error."
                " Start all processes again, from a checkpoint."
            )
        seconds = configuration.from_environment().timeout if timeout is None else timeout
        spec = running.spec if pool is None else pool_uri.parse(pool)
        deadline = time.monotonic() + seconds
        ranks, mine = _ranks(devices)
        meeting = _Agreement(running, ranks, mine, spec, deadline).reach()
        lifecycle.restart(meeting, spec)
        jax.clear_caches()
        _warn_of_jax(meeting.members)
    return [jax.devices()[rank] for rank in meeting.members]


def _ranks(devices: Sequence[Any] | None) -> tuple[list[int], list[int]]:
    """Returns the ranks of the devices (by default all), and which of them this process has."""
    everyone = jax.devices()
    ranks = sorted(everyone.index(device) for device in (devices or everyone))
    mine = [rank for rank in pools.local_ranks() if rank in ranks]
    if not mine:
        raise ValueError(
            f"jax_cxl.regroup: none of the devices belongs to this process: {devices}. Pass devices"
            " of all processes that continue"
        )
    return ranks, mine


@dataclasses.dataclass
class _Agreement:
    """This process's part in the agreement on the new pool and the ranks that continue."""

    running: lifecycle.Runtime
    ranks: list[int]
    mine: list[int]  # The ranks of this process.
    spec: pool_uri.PoolSpec
    deadline: float
    created: _core.Pool | None = None  # Set if this process decides.

    def reach(self) -> pools.Meeting:
        """Returns the pool in which all ranks that continue have registered."""
        while True:
            self.created = None
            for rank in self.mine:
                _core.join_attempt(rank, self.running.attempt)
            members, place = self._wait(self._decision, "called jax_cxl.regroup()")
            if "error" in place:
                self.running.attempt += 1  # All do this, because they read the same decision.
                raise errors.from_code(place["error"], place["message"])
            if not set(self.mine) <= set(members):
                raise errors.NotInitializedError(
                    f"ranks {members} have continued without ranks {self.mine} of this process:"
                    " all processes have to call jax_cxl.regroup() with the same devices"
                )
            try:
                pool = self.created or pools.attach(place)
            except errors.PoolNotFoundError:
                if not self._given_up(members):
                    raise
                self.running.attempt += 1
                continue
            pools.register(pool, self.mine)
            arrival = functools.partial(self._arrival, pool, members)
            complete = self._wait(arrival, "come to the new pool")
            pools.remove_name(pool, place, self.spec)
            if complete:
                pools.check_hosts(pool, members, place)
                return pools.Meeting(pool, members, self.running.generation + 1)
            self.running.attempt += 1

    def _decision(self) -> tuple[Any, list[int]]:
        """Returns a pair: the decision, None if there is none yet; and the ranks it waits for."""
        attempt = self.running.attempt
        # First find the lost ranks, then read: what a rank wrote before it was lost counts.
        left = [rank for rank in self.ranks if not _core.rank_lost(rank)]
        for rank in range(jax.device_count()):
            found: Any = _core.decided_attempt(rank, attempt)
            if found is not None:
                return (found[0], _read(found[1])), []
        awaited = [rank for rank in left if not _core.joined_attempt(rank, attempt)]
        if awaited or left[0] not in self.mine:
            return None, awaited or left[:1]
        _core.decide_attempt(left[0], attempt, left, json.dumps(self._create()))
        return None, left[:1]

    def _arrival(self, pool: _core.Pool, members: list[int]) -> tuple[bool | None, list[int]]:
        """Returns whether all members are in the pool, and the ranks that are missing.

        The first result is None while missing ranks may still come.
        """
        # First find the lost ranks, then read: a rank that registered before it was lost counts.
        lost = any(map(_core.rank_lost, members))
        missing = [rank for rank in members if not pool.registered(rank)]
        if missing and not lost:
            return None, missing
        return not missing, missing

    def _given_up(self, members: list[int]) -> bool:
        """Returns whether the others have given up this attempt and removed the pool's name."""
        later = self.running.attempt + 1
        end = time.monotonic() + _GIVEN_UP_SECONDS
        while time.monotonic() < end:
            joined = (_core.joined_attempt(rank, later) for rank in members)
            if any(map(_core.rank_lost, members)) or any(joined):
                return True
            time.sleep(_POLL_SECONDS)
        return False

    def _create(self) -> dict[str, Any]:
        try:
            self.created, place = pools.create(self.spec, self.running.platform, new_name=True)
        except errors.PoolInUseError as error:
            hint = f"{error}; name a different place than that of the old pool: regroup(pool=...)"
            return pools.no_place(errors.PoolInUseError(hint))
        except Exception as error:
            return pools.no_place(error)
        return place

    def _wait(self, look: Callable[[], tuple[Any, list[int]]], awaited: str) -> Any:
        """Calls `look` until its first result is not None, and returns that."""
        while True:
            found, missing = look()
            if found is not None:
                return found
            if time.monotonic() > self.deadline:
                who = _core.rank_name(missing[0])
                error = errors.CollectiveTimeoutError(f"{who} lives, but has not {awaited} in time")
                error.rank = missing[0]
                raise error
            time.sleep(_POLL_SECONDS)


def _read(text: str) -> dict[str, Any]:
    """Parses the decision of a rank: the place of the new pool."""
    with contextlib.suppress(ValueError):
        place = json.loads(text)
        if isinstance(place, dict):
            return place
    raise errors.PoolCorruptError(
        f"the decision of a rank about the new pool is damaged: {text!r}. Start all processes again"
    )


def _warn_of_jax(members: Sequence[int]) -> None:
    config: Any = jax.config  # Options are attributes that type checkers do not know.
    if launch_environment.goes_on() or config.jax_enable_recoverability:
        return
    if len(members) < jax.device_count():
        logging.getLogger("jax_cxl").warning(
            "a process is gone, and JAX will end the others about 100 s later. Start all of them"
            " with JAX_ENABLE_RECOVERABILITY=1, or with python -m jax_cxl.launch --go-on."
        )
