"""Opens the memory of a table."""

from typing import Any

from jax_cxl import errors
from jax_cxl._store import views
from jax_cxl._store.memory.devices import Devices
from jax_cxl._store.store import Store, names_of
from jax_cxl._table import creating
from jax_cxl._table.columns import Column, identity_of
from jax_cxl._table.open_table import ROWS
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


def constant_columns(held: views.View, cache_rows: int) -> dict[str, Column]:
    """Returns the only column of a table that does not change."""
    rows = held.tree[ROWS]
    column = Column(
        held.section.devices,
        (identity_of(held.section.entry.identity), 0),
        rows.ctypes.data if rows.size else 0,
        rows.shape,
        rows.dtype,
        rows,
        cache_rows=min(cache_rows, len(rows)),
    )
    return {ROWS: column}


def trained_columns(held: views.View) -> tuple[dict[str, Column], region.Region]:
    """Returns the columns of a trained table, and its memory."""
    section = held.section
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
    return columns, memory
