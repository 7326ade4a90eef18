"""Rows with scales, such as float8 with a scale for each block."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from jax_cxl._table import gather, sources
from jax_cxl._table.columns import Column


def check(rows: sources.Source, scales: sources.Source) -> None:
    """Checks that scales fit the rows."""
    floats = jnp.issubdtype(scales.dtype, np.floating)
    per_row = scales.shape == rows.shape[:1]
    per_block = (
        len(scales.shape) == len(rows.shape) > 1
        and scales.shape[:-1] == rows.shape[:-1]
        and scales.shape[-1] > 0
        and rows.shape[-1] % scales.shape[-1] == 0
    )
    if not floats or not (per_row or per_block) or jnp.issubdtype(rows.dtype, np.complexfloating):
        raise ValueError(
            f"scales of {scales.dtype}{list(scales.shape)} do not fit rows of"
            f" {rows.dtype}{list(rows.shape)}: for real rows of shape (R, ..., D),"
            " scales must be floats of shape (R,) or (R, ..., G), where G divides D"
        )


def take(
    rows: Column, scales: Column, ids: Any, how: gather.Mode, fill_value: Any, dtype: Any
) -> Any:
    """Takes rows, multiplied by their scales; the arguments are those of `Table.take`."""
    taken = gather.take(rows, ids, how, 0 if how is gather.Mode.FILL else None)
    wide = jnp.promote_types(np.float32, scales.dtype)
    # In mode ERROR, the call that takes the rows reports ids outside of the table. So the second
    # call, which takes the scales, need not report them too.
    clip_or_fill = how if how is gather.Mode.CLIP else gather.Mode.FILL
    by = gather.take(scales, ids, clip_or_fill).astype(wide)
    if scales.row_shape:
        by = jnp.repeat(by, rows.row_shape[-1] // scales.row_shape[-1], axis=-1)
    else:
        by = by.reshape(*ids.shape, *(1,) * len(rows.row_shape))
    scaled = taken.astype(wide) * by
    if how is gather.Mode.FILL:
        inside = (ids >= -rows.rows) & (ids < rows.rows)
        inside = inside.reshape(*ids.shape, *(1,) * len(rows.row_shape))
        scaled = jnp.where(inside, scaled, np.nan if fill_value is None else fill_value)
    return scaled.astype(dtype)
