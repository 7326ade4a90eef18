"""Pools that several processes share: one process creates a pool, the others attach to it.

The *place* of a pool is a dictionary that becomes JSON. It has the values that another process
needs to attach to the pool. If there is no pool, it has the error instead.
"""

import contextlib
import logging
import os
import secrets
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from jax_cxl import _core, errors
from jax_cxl._job import configuration, platforms
from jax_cxl._job.pool import pool_uri


class Meeting(NamedTuple):
    """The `members` that have registered in a pool."""

    pool: _core.Pool
    members: Sequence[int]
    generation: int = 0


def local_ranks() -> list[int]:
    """Returns the ranks of this process, of all devices that JAX has."""
    here = jax.process_index()
    return [rank for rank, device in enumerate(jax.devices()) if device.process_index == here]


def register(pool: _core.Pool, ranks: Sequence[int]) -> None:
    """Registers these ranks of this process in the pool."""
    devices = jax.devices()
    for rank in ranks:
        pool.register(rank, jax.process_index(), devices[rank].id)


def create(
    spec: pool_uri.PoolSpec, platform: platforms.Platform, new_name: bool = False
) -> tuple[_core.Pool, dict[str, Any]]:
    """Creates a pool for all devices, and returns it with its place.

    With `new_name` a pool in /dev/shm gets a name that differs from that in `spec`, because the job
    already has a pool of that name.
    """
    world_size = jax.device_count()
    spec = spec.sized(world_size, platform.rank_bytes)
    for path in _core.sweep_leftovers():
        logging.getLogger("jax_cxl").warning("removed %s, the pool of a dead job", path)
    place = spec.for_core() | {"world_size": world_size}
    random_name = f"{os.getpid()}.{secrets.token_hex(4)}"
    if not spec.paths:
        place["paths"] = [random_name]
    elif new_name and spec.in_dev_shm:
        place["paths"] = [f"{spec.paths[0][:40]}.{random_name}"]
    dead_after = configuration.from_environment().heartbeat_timeout
    pool = _core.Pool.create(place, dead_after)
    return pool, place | {"token": pool.token, "coherence_given": spec.coherence_given}


def check_hosts(pool: _core.Pool, members: Sequence[int], place: dict[str, Any]) -> None:
    """Refuses the default `coherence=coherent` between hosts. Call it after all have registered."""
    kernels = {pool.boot_id(rank) for rank in members}
    if len(kernels) > 1 and place["coherence"] == "coherent" and not place["coherence_given"]:
        raise errors.InvalidPoolError(
            f"the ranks run on {len(kernels)} hosts, and the URI of the pool does not say whether"
            " their caches are coherent: add coherence=flush, which is right on every machine, or"
            " coherence=coherent if the hardware keeps the caches of all hosts coherent (python -m"
            " jax_cxl doctor --device ... --with HOST:PORT finds out)"
        )


def remove_name(pool: _core.Pool, place: dict[str, Any], spec: pool_uri.PoolSpec) -> None:
    """Removes the name of a pool once all processes have attached, unless its URI keeps it."""
    if spec.keep:
        return
    pool.unlink()
    if spec.in_dev_shm:
        # Another process may have removed the name already.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"/dev/shm/jax_cxl.{place['paths'][0]}")


def no_place(error: Exception) -> dict[str, Any]:
    """Returns the place that tells other processes why there is no pool."""
    return {"error": errors.code_of(error) or "UNKNOWN", "message": str(error)[:800]}


def attach(place: dict[str, Any]) -> _core.Pool:
    """Attaches to the pool of another process, or raises the error that its place has."""
    if "error" in place:
        raise errors.from_code(place["error"], place["message"])
    return _core.Pool.attach(place)
