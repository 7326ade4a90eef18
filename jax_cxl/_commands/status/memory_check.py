"""`doctor --device`: measures a pool's memory on one host."""

import pathlib
import time
from collections.abc import Iterator
from typing import Any

from jax_cxl import _core, errors
from jax_cxl._commands.status import hardware
from jax_cxl._commands.status.finding import Finding, note, ok, problem
from jax_cxl._job.pool import pool_uri

_MIB = 1 << 20
_BYTES = 64 * _MIB


def check_device(uri: str) -> Iterator[Finding]:
    """Measures the memory that a pool URI names. Overwrites the memory, unless a job uses it."""
    spec = pool_uri.parse(uri)
    for path in spec.paths:
        yield from _describe(spec, path)
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


def _describe(spec: pool_uri.PoolSpec, path: str) -> Iterator[Finding]:
    """Describes the device of a path, with what sysfs reports about it."""
    if not spec.medium.is_device:
        yield note(f"{path}: a file; only dax devices describe their memory")
        return
    named = [device for device in hardware.dax_devices() if path == f"/dev/{device.name}"]
    if not named:
        yield note(f"{path}: /sys/bus/dax has no device of this name")
        return
    (device,) = named
    source = device.region
    kind = "CXL" if pathlib.Path("/sys/bus/cxl/devices", source).exists() else "not of the CXL bus"
    size = "unknown size" if device.size is None else f"{device.size / _MIB:.0f} MiB"
    align = "unknown" if device.align is None else f"{device.align / _MIB:g} MiB"
    yield ok(
        f"{path}: {size} of {source} ({kind}), alignment {align}, NUMA distance"
        f" {hardware.distance(device)}"
    )


def arguments(spec: pool_uri.PoolSpec) -> dict[str, Any]:
    """Returns the argument of `_core.Pool.create` for `doctor`'s own pool.

    While that pool exists, no job can use its memory.
    """
    fields = spec.sized(1).for_core() | {"coherence": "flush", "world_size": 1}
    if spec.medium.in_dev_shm:
        fields["paths"] = spec.paths or (f"doctor.{time.time_ns()}",)
    elif not spec.medium.is_device and fields["bytes"] == 0:
        fields["bytes"] = 0 if pathlib.Path(spec.paths[0]).exists() else _BYTES
    return fields
