"""The sections of tables in a store: how they are written, a block at a time, and opened."""

import contextlib
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from jax_cxl import errors
from jax_cxl._store import snapshots, views
from jax_cxl._store.memory import catalog, layout
from jax_cxl._store.memory.devices import Devices
from jax_cxl._store.memory.section import Section
from jax_cxl._store.store import Store, names_of
from jax_cxl._store.trees import leaves, place
from jax_cxl._store.trees.flatten import Description
from jax_cxl._store.writing import fence, saving
from jax_cxl._table.columns import Column
from jax_cxl._table.open_table import ROWS
from jax_cxl._table.sources import Source
from jax_cxl._table.trained.region import Plan, Region

NUMBER = 1  # of the only save of a table
DESCRIPTION = "table"  # the value in the tree of a trained table


def devices_of(store: Any, *, make: bool = False, seconds: float = 0) -> Devices:
    """Returns the memory of a store, given by itself or by its URI; may make it, or wait for it."""
    if isinstance(store, Devices):
        return store
    names = names_of(store if isinstance(store, Store) else Store(store))
    devices = names.made() if make else names.devices(seconds)
    if devices.count != 1:
        raise errors.StoreError(
            f"{devices.where!r} has {devices.count} devices: a table needs a store with one"
            " device, that is, with one path and without devices="
        )
    return devices


def write_constant(devices: Devices, name: str, rows: Source) -> None:
    """Writes a table whose rows never change: a tree with one array."""
    shard = leaves.Shard(tuple((0, n) for n in rows.shape), (0,))
    leaf = leaves.Leaf(f"['{ROWS}']", rows.dtype.name, rows.shape, (shard,))
    description = Description((leaf,), (0,), True)
    stream = _Stream(rows)
    parts = [(part, stream) for part in description.placement(1).parts]
    with _new_section(devices, name, description, [], 0) as section:
        _save(section, description, [], parts)


def write_trained(devices: Devices, name: str, plan: Plan, sources: Sequence[Source]) -> None:
    """Writes a table whose rows change: a tree that describes it, and its memory (`region.py`)."""
    # The tree takes one block, which contains its directory.
    description = Description((leaves.Leaf(f"['{DESCRIPTION}']"),), (0,), True)
    values = [plan.to_text()]
    with _new_section(devices, name, description, values, plan.bytes) as section:
        region = Region(section, plan, _region_start(section))
        region.clear()
        for number, source in enumerate(sources):
            offset = plan.column(number)
            for piece in source.bytes():
                region.write(offset, piece)
                offset += len(piece)
        _save(section, description, values, [])


def constant_columns(held: views.View, cache_rows: int) -> dict[str, Column]:
    """Returns the only column of a table that does not change."""
    rows = held.tree[ROWS]
    column = Column(
        held.section.devices,
        (held.section.entry.identity, 0),
        rows.ctypes.data if rows.size else 0,
        rows.shape,
        rows.dtype,
        rows,
        cache_rows=min(cache_rows, len(rows)),
    )
    return {ROWS: column}


def trained_columns(held: views.View) -> tuple[dict[str, Column], Region]:
    """Returns the columns of a trained table, and its memory."""
    section = held.section
    try:
        plan = Plan.from_text(held.tree[DESCRIPTION])
    except ValueError as error:
        raise errors.StoreError(
            f"{section.text}: {error}. Delete the table, and create it again"
        ) from error
    memory = Region(section, plan, _region_start(section))
    words = memory.address(plan.words), plan.rows_of_part
    columns = {
        of.name: Column(
            section.devices,
            (section.entry.identity, number),
            memory.address(plan.column(number)),
            (plan.rows, *of.row_shape),
            of.dtype,
            held,
            words,
        )
        for number, of in enumerate(plan.columns)
    }
    return columns, memory


def _region_start(section: Section) -> int:
    """Returns where the memory of a trained table begins: after the block of its tree."""
    return section.geometry.row(NUMBER, 1)


@contextmanager
def _new_section(
    devices: Devices,
    name: str,
    description: Description,
    values: Sequence[Any],
    more_bytes: int,
) -> Iterator[Section]:
    """Makes and claims a table's section; removes it if the table is not complete afterwards."""
    geometry = catalog.geometry_for(devices, 0)
    size = description.section_bytes(values, geometry) + more_bytes
    _remove_incomplete(devices, name)
    section = Section(devices, catalog.create(devices, name, 0, size))
    sessions = devices.sessions
    # Another process may take the table for one whose creator has ended, and try to remove it. The
    # lease prevents this.
    lease = sessions.add_lease(catalog.lease_of(section.entry, NUMBER))
    try:
        # Another process may have been faster and made a section of another size, or it may have
        # removed the section.
        has = section.entry.end - section.entry.start
        if has < size or not catalog.stays(devices, section.entry):
            raise errors.StoreError(
                f"{section.text} is being created by another process: wait until it is complete,"
                " then open it with Table.open"
            )
        fence.take_alone(section)
        if section.all_valid():
            raise errors.StoreError(
                f"{section.text} has just been created by another process: open it with Table.open"
            )
        yield section
    finally:
        if section.claim is not None:
            fence.release(section, section.claim)
        sessions.remove_lease(lease)
        if not section.all_valid():
            with contextlib.suppress(errors.StoreError):  # An error is on its way already.
                _remove_incomplete(devices, name)


def _remove_incomplete(devices: Devices, name: str) -> None:
    """Removes a table whose creator ended before the table was complete."""
    if name == snapshots.NAME:
        raise ValueError(f"name={name!r} is the name of snapshots: choose another name")
    section = Section.find(devices, name)
    if section is None:
        return
    catalog.check_kind(devices, section.entry, 0)

    def refused() -> str | None:
        if section.all_valid():
            return "it has just been created by another process: open it with Table.open"
        who = fence.owner(section)
        return f"it is being created by {who}: wait, then open it with Table.open" if who else None

    if section.all_valid():
        raise errors.StoreError(
            f"{section.text} already exists: open it with Table.open, or delete it first with"
            " store.delete"
        )
    catalog.delete(devices, section.entry, refused)


def _save(
    section: Section,
    description: Description,
    values: Sequence[Any],
    parts: Sequence[tuple[place.Part, "_Stream"]],
) -> None:
    token = layout.random_word()
    batch = saving.Batch(parts, [])
    saving.Save(section, NUMBER, token, 0, description, values, 0, [batch], False).run()


class _Stream:
    """The bytes of a source, read in order. After the last byte, the source must end."""

    def __init__(self, source: Source):
        self._pieces = source.bytes()
        self._piece = np.empty(0, np.uint8)
        self._bytes = math.prod(source.shape) * source.dtype.itemsize
        if not self._bytes:
            self._check_end()

    def read(self, start: int, end: int) -> np.ndarray:
        """Returns the next bytes; `start` is where the previous call ended."""
        have = [self._piece]
        while sum(map(len, have)) < end - start:
            have.append(next(self._pieces))
        piece = np.concatenate(have) if len(have) > 1 else have[0]
        out, self._piece = piece[: end - start], piece[end - start :]
        if end == self._bytes:
            self._check_end()
        return out

    def _check_end(self) -> None:
        for _ in self._pieces:
            pass  # The source raises an error if it has more rows.
