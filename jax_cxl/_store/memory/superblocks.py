"""Reads and writes the superblocks. Each device has two copies of its superblock."""

import contextlib
import itertools
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from jax_cxl import _core, errors
from jax_cxl._store.memory import layout

if TYPE_CHECKING:
    from jax_cxl._store.memory.devices import Devices

EMPTY = "it is empty"
SETTLE_SECONDS = 0.1


def read(
    core: _core.PersistentMemory,
) -> tuple[dict[int, layout.Superblock], dict[int, str], dict[int, str]]:
    """Reads superblocks by device; also returns errors of other data, and why devices are blank.

    Other processes of the job may write the superblocks of new memory at the same time. So if only
    some devices have a superblock, this reads again until nothing changes.
    """
    before = None
    while True:
        found, problems, blank = {}, {}, {}
        pages = [_pages(core, device) for device in range(core.num_devices)]
        for device, copies in enumerate(pages):
            try:
                core.check_intact(device)
                found[device] = _one(copies)
            except errors.PoolCorruptError as error:
                blank[device] = str(error)
            except layout.DamagedError as error:
                blank[device] = f"{core.path(device)}: {error}"
            except ValueError as error:
                problems[device] = f"{core.path(device)}: {error}"
        is_new = not any(map(any, itertools.chain(*pages)))
        if len(found) == len(pages) or is_new or pages == before:
            return found, problems, blank
        time.sleep(SETTLE_SECONDS)
        before = pages


def _one(copies: list[bytes]) -> layout.Superblock:
    """Returns the superblock of a device from its copies."""
    pages = [page for page in copies if any(page)]
    if not pages:
        raise layout.DamagedError(EMPTY)
    for page in pages[:-1]:
        with contextlib.suppress(ValueError):
            return layout.Superblock.from_bytes(page)
    return layout.Superblock.from_bytes(pages[-1])


def write(core: _core.PersistentMemory, parity: int, devices: Iterable[int] | None = None) -> None:
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


def damaged(devices: "Devices") -> list[tuple[int, int]]:
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
