"""Finds stores with tables, and how many rows each process takes from them."""

import contextlib
import dataclasses
import os
import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from jax_cxl import _text, errors
from jax_cxl._commands.status import pools
from jax_cxl._job.pool import pool_uri
from jax_cxl._store.memory import layout

if TYPE_CHECKING:  # The module imports JAX, which takes long.
    from jax_cxl._store.memory import catalog
    from jax_cxl._store.memory.devices import Devices

# For how long rows are counted. Readers publish their counts with each heartbeat, five times a
# second.
_WATCH_SECONDS = 1.0
_SHM = "/dev/shm/jax_cxl_store."  # files of stores at shm:NAME


@dataclasses.dataclass(frozen=True)
class Reader:
    """A process that has a table open.

    Attributes:
      process: describes the process, such as "process 12 (python3) on host a".
      rows: rows that it has taken so far.
      rows_per_s: rows that it takes per second.
    """

    process: str
    rows: int
    rows_per_s: float


@dataclasses.dataclass(frozen=True)
class Table:
    """A table in a store.

    Attributes:
      store: URI of the store.
      name: its name.
      bytes: bytes that it takes in the store.
      readers: the processes that have it open.
    """

    store: str
    name: str
    bytes: int
    readers: tuple[Reader, ...]

    def lines(self) -> Iterator[str]:
        """Yields the lines that the command prints about the table."""
        rate = sum(reader.rows_per_s for reader in self.readers)
        count = len(self.readers)
        yield (
            f"table {_text.printable(self.name)} in {_text.printable(self.store)}: {self.bytes}"
            f" bytes, {count} {'reader' if count == 1 else 'readers'}, {rate:.0f} rows/s"
        )
        for reader in self.readers:
            yield f"  {reader.process}: {reader.rows} rows, {reader.rows_per_s:.0f} rows/s"


def named(target: str) -> list[str]:
    """Returns the stores that a process has open, or the store that is at a path or a URI."""
    if target.isdecimal():
        return _open_in(pools.with_descendants(int(target)))
    if os.path.exists(target):
        return [f"file:{os.path.abspath(target)}"] if _has_store(target) else []
    spec = pool_uri.parse(target)
    paths = spec.paths
    if spec.medium.in_dev_shm:
        paths = tuple(_SHM + path for path in paths)
    elif spec.medium.is_device:
        return [target] if not read([target])[1] else []
    return [target] if any(map(_has_store, paths)) else []


def in_use() -> list[str]:
    """Returns the stores in files that processes of this user have open."""
    return _open_in(map(int, filter(str.isdecimal, os.listdir("/proc"))))


def _open_in(pids: Iterable[int]) -> list[str]:
    paths = sorted({path for pid in pids for path in pools.mapped_by(pid)})
    return [
        f"shm:{path.removeprefix(_SHM)}" if path.startswith(_SHM) else f"file:{path}"
        for path in paths
        if _has_store(path) and not _has_several_devices(path)
    ]


def _has_several_devices(path: str) -> bool:
    """Returns whether the store in a file has several devices, and therefore no tables."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        for offset in layout.SUPERBLOCK_OFFSETS:
            file.seek(offset)
            with contextlib.suppress(ValueError, struct.error):
                return layout.Superblock.from_bytes(file.read(layout.PAGE_BYTES)).num_devices > 1
    return False


def read(stores: Sequence[str]) -> tuple[list[Table], list[str]]:
    """Reads the tables of stores. Also returns why some stores could not be read."""
    if not stores:
        return [], []
    from jax_cxl._store.memory import catalog, opening

    found: list[tuple[Devices, catalog.Entry]] = []
    problems: list[str] = []
    for where in stores:
        try:
            devices = opening.open_devices(where, None, existing=True)
            entries = catalog.entries(devices)
        except (errors.CxlError, ValueError, OSError) as error:  # The store may be gone.
            problems.append(str(error))
            continue
        found += [(devices, entry) for entry in entries if not entry.keep]
    before = now = [_counts(devices, entry) for devices, entry in found]
    start = time.monotonic()
    if any(before):
        time.sleep(_WATCH_SECONDS)
        now = [_counts(devices, entry) for devices, entry in found]
    seconds = max(time.monotonic() - start, 1e-9)
    tables = []
    for (devices, entry), old, new in zip(found, before, now, strict=True):
        readers = tuple(
            Reader(who, rows, (rows - old.get(who, rows)) / seconds) for who, rows in new.items()
        )
        tables.append(Table(devices.where, entry.name, entry.end - entry.start, readers))
    return tables, problems


def _counts(devices: "Devices", entry: "catalog.Entry") -> dict[str, int]:
    """Returns how many rows each reader has taken."""
    from jax_cxl._store.memory import catalog

    return dict(devices.sessions.holders_of(catalog.lease_of(entry, 0)))


def _has_store(path: str) -> bool:
    return pools.begins_with(path, layout.MAGIC, *layout.SUPERBLOCK_OFFSETS)
