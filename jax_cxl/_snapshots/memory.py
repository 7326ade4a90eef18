"""Opens the memory of snapshots, and checks or writes its superblocks."""

import ctypes
import dataclasses
import functools
import logging
import os
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jax_cxl import _core, errors
from jax_cxl._job import platforms
from jax_cxl._job.pool import pool_uri
from jax_cxl._snapshots import arguments, fence, layout, superblocks

_SHM = "/dev/shm/jax_cxl_snapshots."


def spec_of(where: str) -> pool_uri.PoolSpec:
    """Reads the URI of snapshots. It is like a pool's URI, but `shm:` names a file that stays.

    `shm:` therefore needs a name, and a size if the file does not exist yet.

    Raises:
      InvalidPoolError: the URI is wrong.
    """
    spec = pool_uri.parse(where)
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


@dataclasses.dataclass
class Memory:
    """Mapped memory, and how it is divided.

    With parity, one of its paths may be lost, also while it is in use. Reads of a lost device give
    zeros, which no checksum fits, and writes to it do nothing.

    Attributes:
      where: its URI.
      core: the mapping.
      geometry: where areas begin.
      blank: devices without a superblock, in memory with parity. They are lost, or were replaced.
      claim: the claim of this job; None while it has none.
      lost: devices whose paths are lost.
    """

    where: str
    core: _core.PersistentMemory
    geometry: layout.Geometry
    blank: tuple[int, ...] = ()
    claim: fence.Claim | None = None
    lost: set[int] = dataclasses.field(default_factory=set)

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

    @property
    def usable_devices(self) -> list[int]:
        """Returns the devices whose paths are not lost."""
        return [d for d in range(self.geometry.num_devices) if d not in self.lost]

    def read(self, device: int, offset: int, size: int) -> np.ndarray:
        """Returns a private copy of bytes of a device."""
        out = np.empty(size, np.uint8)
        self.read_into(device, offset, out)
        return out

    def read_into(self, device: int, offset: int, out: np.ndarray) -> None:
        """Copies bytes of a device into private memory."""
        if not self._try(device, lambda: self.core.read(device, offset, out)):
            out[:] = 0

    def load_word(self, device: int, offset: int) -> int:
        """Returns a word of a device."""
        words: list[int] = []
        self._try(device, lambda: words.append(self.core.load_word(device, offset)))
        return words[0] if words else 0

    def write(self, device: int, offset: int, data: Any, fenced: bool = True) -> None:
        """Copies bytes to a device, and publishes them.

        Args:
          device: the device.
          offset: where the bytes go.
          data: an object with a buffer.
          fenced: whether to check before that no later job has claimed the memory.
        """
        array = np.frombuffer(data, np.uint8)
        self._change(device, fenced, lambda: self.core.write(device, offset, array))

    def store_word(self, device: int, offset: int, value: int, fenced: bool = True) -> None:
        """Stores a word, after everything that this thread has written before."""
        self._change(device, fenced, lambda: self.core.store_word(device, offset, value))

    def publish_device_writes(self, device: int, offset: int, size: int) -> None:
        """Publishes bytes that a GPU has written."""
        self._try(device, lambda: self.core.publish_device_writes(device, offset, size))

    def check_fence(self, device: int) -> None:
        """Checks that no later job has claimed the memory.

        Raises:
          SnapshotError: a later job has.
        """
        if self.claim is not None and device not in self.lost:
            self.claim.check(self, device)

    def check_paths(self) -> None:
        """Checks that files still have their names.

        Raises:
          SnapshotError: a file was deleted or replaced, and parity does not allow its loss.
        """
        self.core.check_names()
        for device in self.usable_devices:
            self._try(device, functools.partial(self.core.check_intact, device))

    def _change(self, device: int, fenced: bool, change: Callable[[], None]) -> None:
        if fenced:
            self.check_fence(device)
        self._try(device, change)

    def _try(self, device: int, access: Callable[[], None]) -> bool:
        """Returns whether a device could be accessed. A device that could not is lost."""
        if device in self.lost:
            return False
        try:
            access()
        except errors.PoolCorruptError as error:
            self._lose(device, error)
            return False
        return True

    def _lose(self, device: int, why: errors.PoolError) -> None:
        path = self.core.path(device)
        devices = range(self.geometry.num_devices)
        lost = self.lost | {d for d in devices if self.core.path(d) == path}
        if len(lost) > self.geometry.parity:
            others = {self.core.path(d) for d in self.lost}
            more = f". {', '.join(others)} is lost too, and parity allows one" if others else ""
            raise errors.SnapshotError(f"{self.where!r}: {why}{more}") from why
        self.lost = lost
        logging.getLogger("jax_cxl").warning(
            "%r: %s. Saves and restores go on without it, by parity. Replace it, and then repair"
            " the snapshots, before another path is lost",
            self.where,
            str(why),  # Handlers keep the arguments, and the error keeps the mapping.
        )

    def erase_records(self, device: int, number: int) -> None:
        """Erases all records in the area of a save."""
        self.write(device, self.geometry.area(number), bytes(layout.RECORDS_BYTES))

    def record(self, number: int, writer: int) -> layout.Record | None:
        """Returns the record of a writer in the area of a save; None if there is none.

        Each device has the record. With parity, it may be missing or damaged on one device, besides
        devices that are known to be lost. A path that was away for a time has an older record.
        """
        found = self._records(number, writer)
        newest = max(filter(None, found.values()), key=lambda record: record.number, default=None)
        known = [d for d in found if d not in self.lost and d not in self.blank]
        missing = sum(found[device] != newest for device in known)
        return newest if missing <= self.geometry.parity else None

    def newest_record(self, number: int, writer: int) -> layout.Record | None:
        """Returns the same, also if a save was stopped before all devices had the record."""
        found = filter(None, self._records(number, writer).values())
        return max(found, key=lambda record: record.number, default=None)

    def _records(self, number: int, writer: int) -> dict[int, layout.Record | None]:
        devices = range(self.geometry.num_devices if self.geometry.parity else 1)
        return {device: self.record_on(device, number, writer) for device in devices}

    def record_on(self, device: int, number: int, writer: int) -> layout.Record | None:
        """Returns the record of a writer in the area of a save on one device, or None."""
        offset = self.geometry.record(number, writer)
        word = self.load_word(device, offset)
        data = self.read(device, offset, layout.RECORD_BYTES).tobytes()
        record = layout.Record.from_bytes(data)
        # The writer stores 0 in the first word before it changes anything else.
        if record and record.number == word == self.load_word(device, offset):
            return record
        return None


def open_memory(where: str, keep: int | None, parity: int | None, repair: bool = False) -> Memory:
    """Maps the memory, and writes superblocks if all of it is new.

    Processes of a job may call this at the same time, because they write the same bytes.

    Args:
      where: URI.
      keep: how many snapshots stay; None takes the number in the superblock.
      parity: 0 or 1; None takes the value in the superblock.
      repair: whether to make paths new that are lost.

    Raises:
      PoolError: the memory cannot be mapped.
      SnapshotError: it holds something else, or was made with other arguments.
    """
    spec = spec_of(where)
    _check_arguments(where, spec, keep, parity)
    mode = "repair" if repair else "existing" if keep is None else "normal"
    core = _open_core(where, spec, keep, mode)
    found, problems, blank = superblocks.read(core)
    if found:
        first = next(iter(found.values()))
        keep = first.keep if keep is None else keep
        parity = first.parity if parity is None else parity
    if keep is None or parity is None:
        problem = next(iter((problems | blank).values()))
        raise errors.SnapshotError(f"there are no snapshots in {where!r}: {problem}")
    expect = functools.partial(
        layout.Superblock, keep, parity, core.num_devices, device_bytes=core.device_bytes
    )
    for device, superblock in found.items():
        if superblock != expect(device):
            problems[device] = (
                f"{core.path(device)} was made with {_describe(superblock)}, and this is"
                f" {_describe(expect(device))}"
            )
    if found and len(blank) > parity:
        problems |= {
            device: f"{problem}, and others are not; with parity={parity} only {parity} may be lost"
            for device, problem in blank.items()
        }
    if not found:
        problems |= {
            d: problem for d, problem in blank.items() if not problem.endswith(superblocks.EMPTY)
        }
    if problems:
        raise errors.SnapshotError(
            f"{where!r} cannot hold these snapshots: {problems[min(problems)]}. Name another"
            " place, or `python -m jax_cxl snapshots format` clears this one"
        )
    geometry = layout.Geometry(keep, parity, core.num_devices, core.device_bytes)
    if geometry.rows < 1:
        raise errors.PoolTooSmallError(
            f"{where!r} is too small for snapshots: each of its devices needs at least"
            f" {geometry.bytes_for(1)} bytes with keep={keep}"
        )
    if not found:
        superblocks.write(core, keep, parity)
        blank = {}
    memory = Memory(where, core, geometry, tuple(blank))
    memory.check_paths()
    for device in set(blank) - memory.lost:
        logging.getLogger("jax_cxl").warning(
            "%r: %s. Repair the snapshots, before another path is lost", where, blank[device]
        )
    return memory


def _open_core(
    where: str, spec: pool_uri.PoolSpec, keep: int | None, mode: str
) -> _core.PersistentMemory:
    least = layout.Geometry(keep, 0, 1, 0).bytes_for(1) if keep is not None else 0
    try:
        return _core.PersistentMemory.open(
            **spec.for_core(),
            magic=layout.MAGIC.decode(),
            magic_offsets=layout.SUPERBLOCK_OFFSETS,
            mode=mode,
            least_bytes=least,
        )
    except errors.PoolCorruptError as error:
        problem = "there are no snapshots in" if keep is None else "snapshots cannot be in"
        raise errors.SnapshotError(f"{problem} {where!r}: {error}") from error


def format_memory(where: str, keep: int, parity: int) -> Memory:
    """Clears the memory, whatever it holds, and writes superblocks.

    Raises:
      PoolError: it cannot be mapped.
    """
    spec = spec_of(where)
    _check_arguments(where, spec, keep, parity)
    core = _open_core(where, spec, keep, "format")
    memory = Memory(where, core, layout.Geometry(keep, parity, core.num_devices, core.device_bytes))
    for device in range(core.num_devices):
        memory.write(device, 0, bytes(layout.HEADER_BYTES))
        for area in range(memory.geometry.areas):
            memory.erase_records(device, area)
    superblocks.write(core, keep, parity)
    return open_memory(where, keep, parity)


def _check_arguments(
    where: str, spec: pool_uri.PoolSpec, keep: int | None, parity: int | None
) -> None:
    arguments.check_numbers(2 if keep is None else keep, parity or 0)
    num_devices = len(spec.paths) * spec.devices_per_path
    if parity and num_devices < 2:
        raise ValueError(f"parity=1 needs two devices or more, and {where!r} has {num_devices}")


def _describe(block: layout.Superblock) -> str:
    return (
        f"keep={block.keep}, parity={block.parity}, device {block.device} of {block.num_devices},"
        f" {block.device_bytes} bytes each"
    )
