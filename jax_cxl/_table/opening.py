"""Opens the memory of a table."""

from typing import Any

from jax_cxl import errors
from jax_cxl._store import views
from jax_cxl._store.memory.devices import Devices
from jax_cxl._store.memory.section import Section
from jax_cxl._store.store import Store, names_of
from jax_cxl._table import creating
from jax_cxl._table.columns import Column, identity_of
from jax_cxl._table.trained import region


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


def view(devices: Devices, name: str) -> tuple[Section, views.View]:
    """Returns the section of a name, and a view of its version. The view leases the version."""
    while True:
        before = Section.find(devices, name)
        found = views.view(devices, name, None, None)
        section = Section.find(devices, name)
        # If the entries differ, the name was deleted and made again meanwhile, and the view may be
        # of the old table. Then try again.
        if before and section and before.entry == section.entry:
            return section, found


def constant_columns(section: Section, held: views.View, cache_rows: int) -> dict[str, Column]:
    """Returns the columns of a table that does not change."""
    identity = identity_of(section.entry.identity)
    return {
        name: Column(
            section.devices,
            (identity, number),
            array.ctypes.data if array.size else 0,
            array.shape,
            array.dtype,
            array,
            cache_rows=min(cache_rows, len(array)),
        )
        for number, (name, array) in enumerate(held.tree.items())
    }


def trained_columns(
    section: Section, held: views.View
) -> tuple[dict[str, Column], views.View, region.Region]:
    """Returns the columns of a trained table, the view that leases the table, and its memory."""
    try:
        plan = region.Plan.from_text(held.tree[creating.DESCRIPTION])
    except ValueError as error:
        raise errors.StoreError(
            f"{section.text}: {error}. Delete the table, and create it again"
        ) from error
    memory = region.Region(section, plan, creating.region_start(section))
    identity = identity_of(section.entry.identity)
    words = memory.address(plan.words), plan.rows_of_part
    columns = {
        of.name: Column(
            section.devices,
            (identity, number),
            memory.address(plan.column(number)),
            (plan.rows, *of.row_shape),
            of.dtype,
            held,
            words,
        )
        for number, of in enumerate(plan.columns)
    }
    return columns, held, memory
