"""Primitives, and what JAX knows while it traces: named axes, and lines of the user's program.

`jax.extend` exports some of these classes, but it also imports Pallas. That took a third of the
time to import jax_cxl.
"""

import sys
import types
from collections.abc import Iterator
from typing import Any

from jax._src import config as _config, source_info_util as _source_info_util
from jax._src.core import (
    Literal as Literal,
    NamedAxisEffect as NamedAxisEffect,
    Primitive as Primitive,
    Var as Var,
)

_config._check_vma.value  # noqa: B018
_source_info_util.is_user_filename, _source_info_util.user_frames  # noqa: B018


def check_vma() -> bool:
    """Whether the function being traced runs under `shard_map(check_vma=True)`."""
    return _config._check_vma.value


def forbidden_axes() -> tuple:
    """Returns the axes over which `no_collectives` (absent in JAX 0.10) forbids communication."""
    state = getattr(_config, "no_collectives", None)
    return tuple(state.value or ()) if state is not None else ()


def sorts_axes_of_ppermute() -> bool:
    """Whether `jax.lax.ppermute` counts ranks in the mesh's order, not in that of `axis_name`.

    JAX 0.10 does. Later versions count ranks in the order of the given axes. They refuse an order
    that differs from the order of the mesh, unless `jax_raise_on_ppermute_sort_diff` is off.
    """
    return not hasattr(_config, "raise_on_ppermute_sort_diff")


def refuses_other_orders_of_axes() -> bool:
    """Whether `jax.lax.ppermute` refuses axes that are not in the order of the mesh."""
    option = getattr(_config, "raise_on_ppermute_sort_diff", None)
    return option is not None and bool(option.value)


def user_frames(ctx: Any) -> Any:
    """Returns the frames outside JAX that led to the equation being lowered, innermost first."""
    return _source_info_util.user_frames(ctx.traceback)


def running_frames() -> Iterator[tuple[str, int, str]]:
    """Yields file, line and function of each frame of this thread outside JAX, innermost first."""
    frame: types.FrameType | None = sys._getframe()
    while frame is not None:
        code = frame.f_code
        if _source_info_util.is_user_filename(code.co_filename):
            yield code.co_filename, frame.f_lineno, code.co_name
        frame = frame.f_back
