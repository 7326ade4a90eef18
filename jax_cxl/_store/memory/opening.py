"""Opens the memory of a store, and checks or writes its superblocks.

Each device has two copies of its superblock.
"""

import contextlib
import dataclasses
import functools
import itertools
import time
from collections.abc import Iterable

import numpy as np

from jax_cxl import _core, _text, errors
from jax_cxl._job import configuration
from jax_cxl._job.pool import pool_uri
from jax_cxl._store import arguments
from jax_cxl._store.memory import layout
from jax_cxl._store.memory.devices import Devices

_SHM = "/dev/shm/jax_cxl_store."
_POLL_SECONDS = 0.01
_EMPTY = "it is empty"
SETTLE_SECONDS = 0.1
_CREATION_SECONDS = 3


class AbsentError(errors.StoreError):
    """There is no store yet: the paths are missing, empty or all zeros."""


def spec_of(where: str) -> pool_uri.PoolSpec:
    """Reads the URI of a store. Its `shm:` names a file that stays, and so needs a name."""
    spec = pool_uri.parse(where)
    if not spec.in_dev_shm:
        return spec
    if not spec.paths:
        raise errors.InvalidPoolError(
            f"a store cannot be in {where!r}: it needs a name by which other jobs find it; write"
            " for example shm:my_run?size=1GiB"
        )
    return dataclasses.replace(spec, kind="file", paths=(_SHM + spec.paths[0],))


def open_devices(
    where: str, parity: int | None, *, existing: bool = False, repair: bool = False
) -> Devices:
    """Maps the memory, and writes superblocks if all of it is new.

    Processes of a job may call this at the same time, because they write the same bytes. If the
    store must be `existing`, nothing is created, and new memory raises an AbsentError. A `repair`
    creates lost paths again.
    """
    spec = spec_of(where)
    _check_parity(where, spec, parity)
    mode = "repair" if repair else "existing" if existing else "normal"
    core = _open_core(where, spec, mode)
    found, problems, blank = _read_superblocks(core)
    if parity is None:
        parity = next(iter(found.values())).parity if found else 0
    if existing and not found:
        problem = next(iter((problems | blank).values()))
        raise errors.StoreError(f"there is no store at {where!r}: {problem}")
    expect = functools.partial(
        layout.Superblock, parity, core.num_devices, device_bytes=core.device_bytes
    )
    for device, superblock in found.items():
        if superblock != expect(device):
            problems[device] = (
                f"{core.path(device)} was made with {_describe(superblock)}, and this is"
                f" {_describe(expect(device))}"
            )
    for device, problem in blank.items():
        if found and len(blank) > parity:
            problems[device] = (
                f"{problem}, but other paths hold a store, and with parity={parity} only {parity}"
                " may be lost"
            )
        elif not found and not problem.endswith(_EMPTY):
            problems[device] = problem
    if problems:
        raise errors.StoreError(
            f"{where!r} cannot hold this store: {problems[min(problems)]}. Name another"
            " place, or clear this one by `python -m jax_cxl store format`"
        )
    if not found:
        write_superblocks(core, parity)
        blank = {}
    devices = Devices(where, core, parity, spec.coherence == "coherent", tuple(blank))
    devices.check_paths()
    for device in set(blank) - devices.lost:
        _text.warn("%r: %s. Repair the store, before another path is lost", where, blank[device])
    return devices


def wait_for_devices(where: str, parity: int | None, seconds: float) -> Devices:
    """Maps the memory of a store. Waits until a job has made it, or raises AbsentError."""
    start = time.monotonic()
    warn_after = configuration.from_environment().warn_after
    while True:
        try:
            return open_devices(where, parity, existing=True)
        except AbsentError as error:
            waited = time.monotonic() - start
            if not seconds:
                raise
            if waited > seconds:
                raise errors.StoreTimeoutError(
                    f"{error}. No job made it within {seconds:g} s"
                ) from error
            if waited > warn_after:
                _text.warn("waiting, because %s", error)
                warn_after = seconds
        time.sleep(_POLL_SECONDS)


def format_devices(where: str, parity: int) -> Devices:
    """Clears the memory, whatever it holds, and writes superblocks."""
    spec = spec_of(where)
    _check_parity(where, spec, parity)
    core = _open_core(where, spec, "format")
    cleared = Devices(where, core, parity, spec.coherence == "coherent")
    for device in range(core.num_devices):
        cleared.write(device, 0, bytes(layout.SECTIONS_OFFSET))
    write_superblocks(core, parity)
    del cleared, core
    return open_devices(where, parity)


def _open_core(where: str, spec: pool_uri.PoolSpec, mode: str) -> _core.PersistentMemory:
    try:
        return _core.PersistentMemory.open(
            spec.for_core(),
            mode=mode,
            least_bytes=0 if mode == "existing" else layout.SECTIONS_OFFSET + layout.BLOCK_BYTES,
            dead_after=configuration.from_environment().heartbeat_timeout,
        )
    except errors.PoolNotFoundError as error:
        if mode != "existing":
            raise
        raise AbsentError(
            f"there is no store at {where!r}: {error}. Check the URI. The first call that writes"
            " makes the store: Store.publish, Table.create or Snapshots.save"
        ) from error
    except errors.PoolCorruptError as error:
        problem = "there is no store at" if mode == "existing" else "a store cannot be in"
        raise errors.StoreError(f"{problem} {where!r}: {error}") from error


def _check_parity(where: str, spec: pool_uri.PoolSpec, parity: int | None) -> None:
    arguments.check_parity(parity or 0)
    num_devices = len(spec.paths) * spec.devices_per_path
    if parity and num_devices < 2:
        raise ValueError(
            f"parity=1 needs two devices or more, and {where!r} has {num_devices}: name more"
            " paths, or leave parity out"
        )


def _describe(block: layout.Superblock) -> str:
    return (
        f"parity={block.parity}, device {block.device} of {block.num_devices},"
        f" {block.device_bytes} bytes each"
    )


def _read_superblocks(
    core: _core.PersistentMemory,
) -> tuple[dict[int, layout.Superblock], dict[int, str], dict[int, str]]:
    """Reads superblocks by device; also returns errors of other data, and why devices are blank.

    Other processes of the job may write the superblocks of new memory at the same time. So if only
    some devices have a superblock, this reads again until nothing changes. It waits longer for
    empty devices without which there is no store: on a busy host, a process may pause between two
    of its writes.
    """
    before = None
    deadline = time.monotonic() + _CREATION_SECONDS
    while True:
        found, problems, blank = {}, {}, {}
        pages = [_pages(core, device) for device in range(core.num_devices)]
        for device, copies in enumerate(pages):
            try:
                core.check_intact(device)
                found[device] = _superblock(copies)
            except errors.PoolCorruptError as error:
                blank[device] = str(error)
            except layout.DamagedError as error:
                blank[device] = f"{core.path(device)}: {error}"
            except ValueError as error:
                problems[device] = f"{core.path(device)}: {error}"
        is_new = not any(map(any, itertools.chain(*pages)))
        empty = sum(problem.endswith(_EMPTY) for problem in blank.values())
        missing = not problems and empty > max((each.parity for each in found.values()), default=0)
        settled = pages == before and (not missing or time.monotonic() > deadline)
        if len(found) == len(pages) or is_new or settled:
            return found, problems, blank
        time.sleep(SETTLE_SECONDS)
        before = pages


def _superblock(copies: list[bytes]) -> layout.Superblock:
    """Returns the superblock of a device from its copies."""
    pages = [page for page in copies if any(page)]
    if not pages:
        raise layout.DamagedError(_EMPTY)
    for page in pages[:-1]:
        with contextlib.suppress(ValueError):
            return layout.Superblock.from_bytes(page)
    return layout.Superblock.from_bytes(pages[-1])


def write_superblocks(
    core: _core.PersistentMemory, parity: int, devices: Iterable[int] | None = None
) -> None:
    """Writes the superblocks of these devices, by default of all devices."""
    devices = range(core.num_devices) if devices is None else list(devices)
    for device in devices:
        page = np.frombuffer(_page_of(core, parity, device), np.uint8)
        for offset in layout.SUPERBLOCK_OFFSETS:
            core.write(device, offset, page)
    for device in devices:
        if _pages(core, device)[0] != _page_of(core, parity, device):
            raise errors.StoreError(
                f"{core.path(device)} is the same memory as another path: name each memory once"
            )


def damaged_superblocks(devices: Devices) -> list[tuple[int, int]]:
    """Returns devices and offsets of damaged copies of superblocks. Ignores lost devices."""
    found = []
    for device in devices.usable:
        right = _page_of(devices.core, devices.parity, device)
        pages = _pages(devices.core, device)
        for offset, page in zip(layout.SUPERBLOCK_OFFSETS, pages, strict=True):
            if device not in devices.blank and page != right:
                found.append((device, offset))
    return found


def _pages(core: _core.PersistentMemory, device: int) -> list[bytes]:
    """Returns the pages in which a device has its superblock; zeros if its path is lost."""
    page = np.empty(layout.PAGE_BYTES, np.uint8)
    pages = []
    for offset in layout.SUPERBLOCK_OFFSETS:
        try:
            core.read(device, offset, page)
        except errors.PoolCorruptError:
            page[:] = 0
        pages.append(page.tobytes())
    return pages


def _page_of(core: _core.PersistentMemory, parity: int, device: int) -> bytes:
    return layout.Superblock(parity, core.num_devices, device, core.device_bytes).to_bytes()
