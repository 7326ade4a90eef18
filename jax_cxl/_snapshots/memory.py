"""Opens the memory of snapshots, and checks or writes its superblocks."""

import ctypes
import dataclasses
import functools
import os
import time
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np

from jax_cxl import _core, errors
from jax_cxl._runtime import platforms, pool_uri
from jax_cxl._snapshots import arguments, layout

_SHM = "/dev/shm/jax_cxl_snapshots."
EMPTY = "it is empty"
SETTLE_SECONDS = 0.1


def spec_of(where: str) -> pool_uri.PoolSpec:
    """Reads the URI of snapshots. It is like a pool's URI, but `shm:` names a file that stays.

    `shm:` therefore needs a name, and a size if the file does not exist yet.

    Raises:
      InvalidPoolError: the URI is wrong.
    """
    spec = pool_uri.parse(where, world_size=1)
    if spec.kind != "shm":
        return spec
    path = _SHM + spec.paths[0] if spec.paths else ""
    with_size = "size=" in where.partition("?")[2]
    if not path or not (with_size or os.path.exists(path)):
        raise errors.InvalidPoolError(
            f"snapshots cannot be in {where!r}: they need a size, and a name by which a later job"
            " finds them; write for example shm:my_run?size=1GiB"
        )
    size = spec.bytes if with_size else 0  # 0: the size of the file
    return dataclasses.replace(spec, kind="file", paths=(path,), bytes=size)


@dataclasses.dataclass(frozen=True)
class Memory:
    """Mapped memory, and how it is divided.

    Attributes:
      where: its URI.
      core: the mapping.
      geometry: where areas begin.
      blank: devices without a superblock, in memory with parity. They are new or were replaced.
    """

    where: str
    core: _core.PersistentMemory
    geometry: layout.Geometry
    blank: tuple[int, ...] = ()

    @functools.cached_property
    def device_copies(self) -> Any:
        """Returns the object that copies from this process's GPUs. Its creation takes long."""
        ordinals = [platforms.CUDA.ordinal(device) for device in jax.local_devices()]
        create = platforms.CUDA.load().DeviceCopies.create
        return create(self.core, self.core.base, self.core.total_bytes, ordinals)

    @functools.cached_property
    def mapped(self) -> np.ndarray:
        """Returns a view of all bytes, without the operations that coherence needs."""
        mapped = (ctypes.c_uint8 * self.core.total_bytes).from_address(self.core.base)
        return np.ctypeslib.as_array(mapped)

    def read(self, device: int, offset: int, size: int) -> np.ndarray:
        """Returns a private copy of bytes of a device."""
        out = np.empty(size, np.uint8)
        self.core.read(device, offset, out)
        return out

    def write(self, device: int, offset: int, data: Any) -> None:
        """Copies bytes to a device, and publishes them."""
        self.core.write(device, offset, np.frombuffer(data, np.uint8))

    def erase_records(self, device: int, number: int) -> None:
        """Erases all records in the area of a save."""
        zeros = np.zeros(layout.RECORDS_BYTES, np.uint8)
        self.core.write(device, self.geometry.area(number), zeros)

    def record(self, number: int, writer: int) -> layout.Record | None:
        """Returns the record of a writer in the area of a save; None if there is none.

        Every device has the record. Blank devices are read last.
        """
        devices = sorted(range(self.geometry.num_devices), key=lambda d: (d in self.blank, d))
        for device in devices[: 1 + self.geometry.parity]:
            if record := self.record_on(device, number, writer):
                return record
        return None

    def record_on(self, device: int, number: int, writer: int) -> layout.Record | None:
        """Returns the record of a writer in the area of a save on one device, or None."""
        offset = self.geometry.record(number, writer)
        word = self.core.load_word(device, offset)
        data = self.read(device, offset, layout.RECORD_BYTES).tobytes()
        record = layout.Record.from_bytes(data)
        # The writer stores 0 in the first word before it changes anything else.
        if record and record.number == word == self.core.load_word(device, offset):
            return record
        return None


def open_memory(where: str, keep: int | None, parity: int | None) -> Memory:
    """Maps the memory, and writes superblocks if all of it is new.

    Processes of a job may call this at the same time, because they write the same bytes.

    Args:
      where: URI.
      keep: number of areas; None takes the number in the superblock.
      parity: 0 or 1; None takes the value in the superblock.

    Raises:
      PoolError: the memory cannot be mapped.
      SnapshotError: it holds something else, or was made with other arguments.
    """
    core = _core.PersistentMemory.open(**spec_of(where).for_core())
    found, problems, blank = _superblocks(core)
    if found:
        first = next(iter(found.values()))
        keep = first.keep if keep is None else keep
        parity = first.parity if parity is None else parity
    if keep is None or parity is None:
        problem = next(iter((problems | blank).values()))
        raise errors.SnapshotError(f"there are no snapshots in {where!r}: {problem}")
    _check_arguments(where, keep, parity, core.num_devices)
    expect = functools.partial(
        layout.Superblock, keep, parity, core.num_devices, device_bytes=core.device_bytes
    )
    for device, superblock in found.items():
        if superblock != expect(device):
            problems[device] = (
                f"it was made with {_describe(superblock)}, and this is {_describe(expect(device))}"
            )
    if found and len(blank) > parity:
        problems |= {
            device: f"{problem}, and others are not; with parity={parity} only {parity} may be lost"
            for device, problem in blank.items()
        }
    if not found:
        problems |= {d: problem for d, problem in blank.items() if problem != EMPTY}
    if problems:
        device, problem = min(problems.items())
        raise errors.SnapshotError(
            f"{where!r} cannot hold these snapshots: device {device}: {problem}. Name another"
            " place, or `python -m jax_cxl snapshots format` clears this one"
        )
    geometry = layout.Geometry(keep, parity, core.num_devices, core.device_bytes)
    if geometry.rows < 1:
        raise errors.PoolTooSmallError(
            f"{where!r} is too small for snapshots: each of its devices needs at least"
            f" {geometry.bytes_for(1)} bytes with keep={keep}"
        )
    if not found:
        write_superblocks(core, keep, parity)
        blank = {}
    return Memory(where, core, geometry, tuple(blank))


def _superblocks(
    core: _core.PersistentMemory,
) -> tuple[dict[int, layout.Superblock], dict[int, str], dict[int, str]]:
    """Returns superblocks, errors of devices with other contents, and why devices count as blank.

    At the same time other processes of the job may write the superblocks of new memory.
    """
    pages = _first_pages(core)
    while True:
        found, problems, blank = {}, {}, {}
        for device, page in enumerate(pages):
            try:
                if any(page):
                    found[device] = layout.Superblock.from_bytes(page)
                else:
                    blank[device] = EMPTY
            except layout.DamagedError as error:
                blank[device] = str(error)
            except ValueError as error:
                problems[device] = str(error)
        if len(found) == len(pages) or not any(map(any, pages)):
            return found, problems, blank
        time.sleep(SETTLE_SECONDS)
        before, pages = pages, _first_pages(core)
        if pages == before:
            return found, problems, blank


def _first_pages(core: _core.PersistentMemory) -> list[bytes]:
    page = np.empty(layout.PAGE_BYTES, np.uint8)
    pages = []
    for device in range(core.num_devices):
        core.read(device, 0, page)
        pages.append(page.tobytes())
    return pages


def write_superblocks(
    core: _core.PersistentMemory, keep: int, parity: int, devices: Iterable[int] | None = None
) -> None:
    """Writes the first page of these devices, by default of all devices."""
    for device in range(core.num_devices) if devices is None else devices:
        superblock = layout.Superblock(keep, parity, core.num_devices, device, core.device_bytes)
        core.write(device, 0, np.frombuffer(superblock.to_bytes(), np.uint8))


def format_memory(where: str, keep: int, parity: int) -> Memory:
    """Clears the memory, whatever it holds, and writes superblocks.

    Raises:
      PoolError: it cannot be mapped.
    """
    core = _core.PersistentMemory.open(**spec_of(where).for_core())
    _check_arguments(where, keep, parity, core.num_devices)
    memory = Memory(where, core, layout.Geometry(keep, parity, core.num_devices, core.device_bytes))
    for device in range(core.num_devices):
        for area in range(keep if memory.geometry.rows else 0):
            memory.erase_records(device, area)
    write_superblocks(core, keep, parity)
    return open_memory(where, keep, parity)


def _check_arguments(where: str, keep: int, parity: int, num_devices: int) -> None:
    arguments.check_numbers(keep, parity)
    if parity and num_devices < 2:
        raise ValueError(f"parity=1 needs two devices or more, and {where!r} has {num_devices}")


def _describe(block: layout.Superblock) -> str:
    return (
        f"keep={block.keep}, parity={block.parity}, device {block.device} of {block.num_devices},"
        f" {block.device_bytes} bytes each"
    )
