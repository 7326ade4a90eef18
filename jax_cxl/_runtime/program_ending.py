"""How the program ends: what the other ranks are told at exit."""

import functools
import sys
from typing import NoReturn

from jax_cxl import _core


@functools.cache
def watch() -> None:
    """From now on, `reason` knows of `sys.exit`."""
    _core.watch_exit()
    if sys.version_info < (3, 12):
        # Python 3.11 makes no exception of it unless somebody catches it.
        @functools.wraps(sys.exit)
        def leave(status: object = None, /) -> NoReturn:
            raise SystemExit(status)

        sys.exit = leave


def reason() -> str:
    """Returns the status or the exception with which the program fails; "" if it does not.

    For handlers that run at exit.
    """
    # 3.11 has the last three of exc_info, 3.12 on the exception too.
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    if error is not None:
        return f"{type(error).__name__}: {error}".removesuffix(": ")
    code = _core.uncaught_exit()
    if code is None:
        return ""
    # As the interpreter reads it: a number is the status, anything else is printed and means 1.
    if not isinstance(code, int):
        return f"status 1: {code}"
    return f"status {code & 0xFF}" if code & 0xFF else ""
