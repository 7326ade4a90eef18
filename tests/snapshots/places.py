"""Memory for snapshots in files of a test's own, and ways to damage it."""

import os
import pathlib
from collections.abc import Iterator
from contextlib import contextmanager

import jax
import numpy as np
import shared_folder

import jax_cxl
from jax_cxl._commands.store import listing
from jax_cxl._store.memory import layout, opening
from jax_cxl._store.memory.section import Section
from jax_cxl._store.reading import repair as mending, restoring


class Place:
    """Files in place of CXL devices.

    Attributes:
      paths: paths of the files.
      where: URI of the memory.
    """

    def __init__(self, folder: str, size: int, paths: int = 1):
        self.size = size
        self.paths = [pathlib.Path(folder) / f"device{i}" for i in range(paths)]
        self.where = f"file:{','.join(map(str, self.paths))}?size={size}"

    def open(self, **options) -> jax_cxl.Snapshots:
        """Opens the snapshots as a new job does, before its processes have agreed on anything."""
        return jax_cxl.Snapshots(self.where, **options)

    def contents(self) -> list[bytes]:
        """Returns what the files hold, except the table of sessions, which each heartbeat
        changes."""
        start, end = layout.SESSIONS_OFFSET, layout.CATALOG_OFFSET
        found = (path.read_bytes() for path in self.paths)
        return [data[:start] + bytes(len(data[start:end])) + data[end:] for data in found]

    def flip(self, device: int, offset: int, mask: int = 0xFF) -> None:
        """Flips the bits `mask` of a byte. A second call with the same mask flips them back."""
        with open(self.paths[device], "r+b") as file:
            file.seek(offset)
            (byte,) = file.read(1)
            file.seek(offset)
            file.write(bytes([byte ^ mask]))

    def lose(self, device: int) -> None:
        """Replaces a device by an empty one."""
        self.paths[device].unlink()
        self.paths[device].touch(mode=0o600)

    def zero(self, device: int) -> None:
        """Puts zeros onto a device."""
        os.truncate(self.paths[device], 0)
        os.truncate(self.paths[device], self.size)


@contextmanager
def place(tree, *, keep: int = 2, parity: int = 0, paths: int = 1) -> Iterator[Place]:
    """Makes memory that is just large enough for snapshots of a tree."""
    size = jax_cxl.Snapshots.bytes_needed(tree, keep=keep, parity=parity, paths=paths)
    with shared_folder.folder() as name:
        yield Place(name, size, paths)


def repair(where: Place) -> mending.Repaired:
    """Repairs the memory, as the command does."""
    devices = opening.open_devices(where.where, None, repair=True)
    return mending.repair(devices, listing.sections(devices))


def section(where: Place) -> Section:
    """Opens the section of the snapshots, for reading."""
    found = Section.find(opening.open_devices(where.where, None, existing=True), "snapshots")
    assert found is not None
    return found


def used(where: Place, step: int) -> list[tuple[str, int, int, int]]:
    """Returns the parts of the snapshot of a step: kind, device, offset and length of each."""
    opened = section(where)
    for records in opened.all_valid():
        if records[0].version == step:
            break
    else:
        raise AssertionError(f"no snapshot of step {step}")
    found = []
    geometry = opened.geometry
    for device in range(geometry.num_devices):
        found += [("superblock", device, at, layout.PAGE_BYTES) for at in layout.SUPERBLOCK_OFFSETS]
        found += [
            ("record", device, geometry.record(r.number, r.writer), layout.RECORD_BYTES)
            for r in records
        ]
    for own, record in zip(restoring.Reader(opened, records).stripes, records, strict=True):
        kinds = [
            ("data", record.data_blocks * layout.BLOCK_BYTES),
            ("table", 8 * record.data_blocks),
            ("directory", record.directory_bytes),
        ]
        block = 0
        for kind, left in kinds:
            for start in range(0, left, layout.BLOCK_BYTES):
                found.append((kind, *own.place(block), min(left - start, layout.BLOCK_BYTES)))
                block += 1
        if geometry.parity:
            for row in range(own.num_rows):
                found.append(
                    ("parity", own.parity_device(row), own.offset(row), layout.BLOCK_BYTES)
                )
    return found


def assert_same(test, expected, found) -> None:
    """Asserts that two trees are the same to the bit, with the same types and shardings."""
    structure = jax.tree.structure(expected, is_leaf=_is_none)
    test.assertEqual(structure, jax.tree.structure(found, is_leaf=_is_none))
    of_found = jax.tree.leaves(found, is_leaf=_is_none)
    with_path = jax.tree_util.tree_leaves_with_path(expected, is_leaf=_is_none)
    for (path, a), b in zip(with_path, of_found, strict=True):
        name = jax.tree_util.keystr(path)
        test.assertIs(type(b), type(a), name)
        if not hasattr(a, "dtype"):
            test.assertEqual(repr(a), repr(b), name)
            continue
        test.assertEqual((a.dtype, a.shape), (b.dtype, b.shape), name)
        if jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key):
            test.assertEqual(str(jax.random.key_impl(a)), str(jax.random.key_impl(b)), name)
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        test.assertEqual(np.asarray(a).tobytes(), np.asarray(b).tobytes(), name)


def _is_none(x) -> bool:
    return x is None
