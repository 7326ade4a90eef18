"""The lines of the user's program that led to a call."""

import sys
import types
from collections.abc import Iterator
from typing import Any

from jax._src import source_info_util as _source_info_util

_source_info_util.is_user_filename, _source_info_util.user_frames  # noqa: B018


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
