"""`doctor --device`: measures a pool's memory on one host."""

import pathlib
import time
from collections.abc import Iterator
from typing import Any

from jax_cxl import _core, errors
from jax_cxl._commands.status.finding import Finding, ok, problem
from jax_cxl._job.pool import pool_uri

_MIB = 1 << 20
_BYTES = 64 * _MIB


def check_device(uri: str) -> Iterator[Finding]:
    """Measures the memory that a pool URI names. Overwrites the memory, unless a job uses it."""
    spec = pool_uri.parse(uri)
    try:
        pool = _core.Pool.create(arguments(spec))
        speed = pool.measure_memory()
    except errors.CxlError as error:
        yield problem(f"memory: {error}")
        return
    yield ok(
        f"memory: load {speed['load_ns']:.0f} ns, store and write-back {speed['store_ns']:.0f} ns"
        " (median; 8 bytes that are in no cache)"
    )
    yield ok(
        f"memory: one thread, {speed['bytes'] / _MIB:.0f} MiB, GB/s: loads"
        f" {speed['load_gbs']:.2f}, stores with write-backs {speed['store_gbs']:.2f},"
        f" non-temporal stores {speed['non_temporal_store_gbs']:.2f}, write-backs from a cache"
        f" {speed['write_back_gbs']:.2f}"
    )


def arguments(spec: pool_uri.PoolSpec) -> dict[str, Any]:
    """Returns the argument of `_core.Pool.create` for `doctor`'s own pool, which excludes jobs."""
    fields = spec.sized(1).for_core() | {"coherence": "flush", "world_size": 1}
    if spec.in_dev_shm:
        fields["paths"] = spec.paths or (f"doctor.{time.time_ns()}",)
    elif not spec.is_device and fields["bytes"] == 0:
        fields["bytes"] = 0 if pathlib.Path(spec.paths[0]).exists() else _BYTES
    return fields
