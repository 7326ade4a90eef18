"""`doctor --device`: measures and checks a pool's memory, on one host and between two.

Between two hosts one process listens, and the other process connects. They agree on each step by
short lines of JSON. The stores that they check go through the memory.
"""

import dataclasses
import json
import pathlib
import socket
import time
from collections.abc import Iterator
from typing import Any

from jax_cxl import _core, errors
from jax_cxl._runtime import pool_uri, processes
from jax_cxl._status import dax_devices
from jax_cxl._status.finding import Finding

_MIB = 1 << 20
_BYTES = 64 * _MIB
# How long a load is repeated before a store counts as lost.
_ARRIVAL_SECONDS = 0.05
_ROUNDS = 2000
_ANSWER_SECONDS = 60.0


def check_device(uri: str) -> Iterator[Finding]:
    """Measures the memory that a pool URI names. Overwrites it, unless a job uses it."""
    spec = pool_uri.parse(uri, world_size=1)
    for path in spec.paths:
        yield from _describe(spec, path)
    try:
        pool = _create(spec)
        speed = pool.measure_memory()
    except errors.CxlError as error:
        yield Finding("problem", f"memory: {error}")
        return
    yield Finding(
        "ok",
        f"memory: load {speed['load_ns']:.0f} ns, store and write-back {speed['store_ns']:.0f} ns"
        " (median, 8 bytes in no cache)",
    )
    yield Finding(
        "ok",
        f"memory: one thread, {speed['bytes'] / _MIB:.0f} MiB, GB/s: loads"
        f" {speed['load_gbs']:.2f}, stores with write-backs {speed['store_gbs']:.2f},"
        f" non-temporal stores {speed['non_temporal_store_gbs']:.2f}, write-backs from a cache"
        f" {speed['write_back_gbs']:.2f}",
    )


def _describe(spec: pool_uri.PoolSpec, path: str) -> Iterator[Finding]:
    """Describes the device of a path, as far as sysfs knows it."""
    if spec.kind != "dax":
        yield Finding("note", f"{path}: a file; only dax devices say what memory they are")
        return
    named = [device for device in dax_devices.devices() if path == f"/dev/{device.name}"]
    if not named:
        yield Finding("note", f"{path}: /sys/bus/dax has no device of this name")
        return
    (device,) = named
    source = device.region
    kind = "CXL" if pathlib.Path("/sys/bus/cxl/devices", source).exists() else "not of the CXL bus"
    size = "unknown size" if device.size is None else f"{device.size / _MIB:.0f} MiB"
    align = "unknown" if device.align is None else f"{device.align / _MIB:g} MiB"
    yield Finding(
        "ok",
        f"{path}: {size} of {source} ({kind}), alignment {align}, NUMA distance"
        f" {dax_devices.distance(device)}",
    )


def _create(spec: pool_uri.PoolSpec) -> "_core.Pool":
    """Claims the memory as a pool. It fails if a job uses the memory, and keeps jobs out."""
    return _core.Pool.create(**_arguments(spec))


def _arguments(spec: pool_uri.PoolSpec) -> dict[str, Any]:
    fields = spec.for_core() | {"coherence": "flush", "world_size": 1}
    if spec.kind == "shm":
        fields["paths"] = spec.paths or (f"doctor.{time.time_ns()}",)
    elif spec.kind == "file" and fields["bytes"] == 0:
        fields["bytes"] = 0 if pathlib.Path(spec.paths[0]).exists() else _BYTES
    return fields


@dataclasses.dataclass(frozen=True)
class Observations:
    """How many of their stores two hosts saw.

    Attributes:
      words: how many stores of each kind each host made.
      plain: of the stores without a write-back, how many arrived at loads that drop nothing.
      dropped: of the same stores, how many arrived at loads that first drop the line.
      flushed: of the stores with a write-back, how many arrived at loads that first drop the line.
      round_trip_ns: median time of a doorbell to the other host and back.
      kernels: how many kernels took part.
    """

    words: int
    plain: int
    dropped: int
    flushed: int
    round_trip_ns: float
    kernels: int


def recommend(seen: Observations) -> Iterator[Finding]:
    """Concludes from the counts which `coherence=` the pool needs."""
    if seen.flushed < seen.words:
        yield Finding(
            "problem",
            f"memory: {seen.words - seen.flushed} of {seen.words} stores that were written back did"
            " not arrive: the hosts do not map the same memory, or the device caches it",
        )
        return
    yield Finding(
        "ok", f"memory: the same on both hosts ({seen.words} of {seen.words} stores arrived)"
    )
    yield Finding(
        "ok",
        f"doorbell: {seen.round_trip_ns / 2000:.2f} us each way (half of a round trip, median of"
        f" {_ROUNDS}, coherence=flush)",
    )
    if seen.kernels < 2:
        yield Finding(
            "note", "both processes run under one kernel, whose caches are always coherent"
        )
    counts = f"{seen.plain} of {seen.words} stores arrived without a write-back and without a drop"
    if seen.plain == seen.words:
        yield Finding(
            "ok",
            f"coherence: {counts}, so the hardware may keep the caches coherent. If its maker says"
            " so, write coherence=coherent; coherence=flush, the default of dax:, is always right",
        )
    elif seen.dropped == seen.words:
        yield Finding(
            "ok",
            f"coherence: {counts}, and {seen.dropped} with a drop: write-backs are not needed,"
            " drops are; use coherence=flush",
        )
    else:
        yield Finding(
            "ok", f"coherence: {counts}: the caches are not coherent; use coherence=flush"
        )


def check_between_hosts(uri: str, address: str) -> Iterator[Finding]:
    """Runs the check with the process on the other host that has the same URI.

    Args:
      uri: the pool's URI.
      address: "HOST:PORT" of the host that listens; ":PORT" on that host itself.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal():
        raise ValueError(f"--with {address!r} is not HOST:PORT, or :PORT on the host that listens")
    spec = pool_uri.parse(uri, world_size=1)
    try:
        with _connect(host, int(port)) as connection:
            partner = _Partner(connection)
            seen = _listen(spec, partner) if not host else _join(spec, partner)
    except (OSError, errors.CxlError) as error:
        yield Finding("problem", f"memory between the hosts: {error}")
        return
    yield from recommend(seen)


def _connect(host: str, port: int) -> socket.socket:
    """Listens if `host` is "", else connects; the other host may start first."""
    if not host:
        with socket.create_server(("", port)) as server:
            server.settimeout(_ANSWER_SECONDS)
            connection, _ = server.accept()
        return connection
    deadline = time.monotonic() + _ANSWER_SECONDS
    while True:
        try:
            return socket.create_connection((host, port), timeout=_ANSWER_SECONDS)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


class _Partner:
    """The process on the other host."""

    def __init__(self, connection: socket.socket):
        connection.settimeout(_ANSWER_SECONDS)
        self._lines = connection.makefile("rw")

    def say(self, **message: Any) -> None:
        self._lines.write(json.dumps(message) + "\n")
        self._lines.flush()

    def hear(self) -> dict[str, Any]:
        line = self._lines.readline()
        if not line:
            raise ConnectionError("the process on the other host has ended: see what it printed")
        message = json.loads(line)
        if "error" in message:
            raise ConnectionError(f"the other host: {message['error']}")
        return message


def _listen(spec: pool_uri.PoolSpec, partner: _Partner) -> Observations:
    """Runs the check on the host that creates the pool."""
    try:
        pool = _create(spec)
    except errors.CxlError as error:
        partner.say(error=str(error))
        raise
    words = pool.check_words()
    for index in range(words + 2):  # The doorbells too.
        pool.store_check_word(index, 0, True)
    partner.say(token=pool.token, arguments=_arguments(spec), boot_id=processes.boot_id())
    kernels = {processes.boot_id(), partner.hear()["boot_id"]}
    # First one direction, then the other. The values differ, so that no old value is accepted.
    mine = _store_words(pool, partner, words, 1)
    theirs = _watch_words(pool, partner, words, 2)
    round_trip = pool.pass_doorbell(first=True, rounds=_ROUNDS, timeout=_ANSWER_SECONDS)
    # The worse of both directions decides.
    worse = {key: min(mine[key], theirs[key]) for key in mine}
    partner.say(worse=worse, round_trip=round_trip)
    partner.hear()  # Keep the pool until the other host has closed it.
    return Observations(words, **worse, round_trip_ns=round_trip, kernels=len(kernels))


def _join(spec: pool_uri.PoolSpec, partner: _Partner) -> Observations:
    """Runs the check on the host that attaches to the pool."""
    start = partner.hear()
    try:
        pool = _core.Pool.attach(
            **start["arguments"] | {"paths": _arguments(spec)["paths"], "token": start["token"]}
        )
    except errors.CxlError as error:
        problem = f"{error} (does it map the same memory?)"
        partner.say(error=problem)
        raise ConnectionError(problem) from error
    words = pool.check_words()
    partner.say(boot_id=processes.boot_id())
    kernels = {processes.boot_id(), start["boot_id"]}
    _watch_words(pool, partner, words, 1)
    _store_words(pool, partner, words, 2)
    pool.pass_doorbell(first=False, rounds=_ROUNDS, timeout=_ANSWER_SECONDS)
    found = partner.hear()
    partner.say(done=True)
    return Observations(
        words, **found["worse"], round_trip_ns=found["round_trip"], kernels=len(kernels)
    )


def _store_words(
    pool: "_core.Pool", partner: _Partner, words: int, direction: int
) -> dict[str, int]:
    """Stores to each word, first without a write-back. Returns how many stores arrived, by kind."""
    for index in range(words):
        partner.hear()  # The other host now has the word in its cache.
        pool.store_check_word(index, 10 * direction, False)
        partner.say(stored=index)
        partner.hear()
        pool.store_check_word(index, 10 * direction + 1, True)
        partner.say(stored=index)
    return partner.hear()["seen"]


def _watch_words(
    pool: "_core.Pool", partner: _Partner, words: int, direction: int
) -> dict[str, int]:
    """Looks for the stores of the other host; returns how many arrived, by kind."""
    seen = {"plain": 0, "dropped": 0, "flushed": 0}

    def arrives(index: int, value: int, drop: bool) -> bool:
        deadline = time.monotonic() + _ARRIVAL_SECONDS
        while pool.load_check_word(index, drop) != value:
            if time.monotonic() > deadline:
                return False
        return True

    for index in range(words):
        pool.load_check_word(index, True)
        pool.load_check_word(index, False)
        partner.say(cached=index)
        partner.hear()
        plain = arrives(index, 10 * direction, False)
        seen["plain"] += plain
        seen["dropped"] += plain or arrives(index, 10 * direction, True)
        partner.say(looked=index)
        partner.hear()
        seen["flushed"] += arrives(index, 10 * direction + 1, True)
    partner.say(seen=seen)
    return seen
