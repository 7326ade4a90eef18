"""Pools that several processes share: who creates one, who attaches, who is in it.

The *place* of a pool is what another process needs to attach to it, or why there is none: a
dictionary that becomes JSON.
"""

import contextlib
import dataclasses
import os
import secrets
from collections.abc import Sequence
from typing import Any

import jax

from jax_cxl import _core, _platform, _pool_uri, errors


@dataclasses.dataclass(frozen=True)
class Meeting:
    """Who has met in a pool.

    Attributes:
      pool: where all of `members` have registered.
      members: their ranks.
      generation: how often the job has gone on after an error.
    """

    pool: _core.Pool
    members: Sequence[int]
    generation: int = 0


def local_ranks() -> list[int]:
    """Returns the ranks of this process, of all devices that JAX has."""
    here = jax.process_index()
    return [rank for rank, device in enumerate(jax.devices()) if device.process_index == here]


def register(pool: _core.Pool, ranks: Sequence[int]) -> None:
    """Writes who these ranks of this process are into the pool."""
    devices = jax.devices()
    for rank in ranks:
        pool.register(rank, jax.process_index(), devices[rank].id)


def create(
    uri: str | None, platform: _platform.Platform, new_name: bool = False
) -> tuple[_core.Pool, dict[str, Any]]:
    """Creates a pool for all devices.

    Args:
      uri: as for `initialize`.
      platform: that of the devices.
      new_name: the job has a pool of this name already, if it is one in /dev/shm.

    Returns:
      The pool, and its place: what another process needs to attach to it.
    """
    world_size = jax.device_count()
    spec = _pool_uri.parse(uri, world_size, platform.rank_bytes)
    _core.sweep_leftovers()
    place = dataclasses.asdict(spec) | {"world_size": world_size}
    del place["keep"]
    random_name = f"{os.getpid()}.{secrets.token_hex(4)}"
    if not spec.paths:
        place["paths"] = [random_name]
    elif new_name and spec.kind in _pool_uri.NAMED:
        place["paths"] = [f"{spec.paths[0][:40]}.{random_name}"]
    pool = _core.Pool.create(**place)
    return pool, place | {"token": pool.token}


def remove_name(pool: _core.Pool, place: dict[str, Any], uri: str | None) -> None:
    """Removes the name of a pool that nobody will attach to any more, unless its URI keeps it."""
    if _pool_uri.parse(uri, world_size=1).keep:
        return
    pool.unlink()
    if place["kind"] in _pool_uri.NAMED:
        # If this process did not create it: whoever did may be gone.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"/dev/shm/jax_cxl.{place['paths'][0]}")


def no_place(error: Exception) -> dict[str, Any]:
    """Returns what stands in the place of a pool that could not be created."""
    codes = (code for code, kind in errors.BY_CODE.items() if type(error) is kind)
    return {"error": next(codes, "INTERNAL"), "message": str(error)[:800]}


def attach(place: dict[str, Any]) -> _core.Pool:
    """Attaches to the pool of another process, or raises why that could not create one."""
    if "error" in place:
        raise errors.from_code(place["error"], place["message"])
    return _core.Pool.attach(**place)
