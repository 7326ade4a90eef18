"""Finds out how the program ends, so that this process can tell the other ranks at exit."""

import functools
import sys
from typing import NoReturn

from jax_cxl import _core


@functools.cache
def watch() -> None:
    """Records calls of `sys.exit` from now on, so that `reason` knows their status."""
    _core.watch_exit()
    if sys.version_info < (3, 12):
        # In Python 3.11 `sys.exit` makes no SystemExit object unless somebody catches it. The
        # function below always makes one, so that its status can be read.
        @functools.wraps(sys.exit)
        def leave(status: object = None, /) -> NoReturn:
            raise SystemExit(status)

        sys.exit = leave


def reason() -> str:
    """Returns the status or the exception with which the program fails, or "" if it does not fail.

    Call it from handlers that run at exit.
    """
    # Python 3.11 sets sys.last_value; Python 3.12 and newer set sys.last_exc too.
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    if error is not None:
        text, traceback, rest = f"{type(error).__name__}: {error}".partition("Traceback (most ")
        # The pool has room for few lines, and a traceback ends with its error.
        return text + rest.splitlines()[-1] if traceback else text.removesuffix(": ")
    code = _core.uncaught_exit()
    if code is None:
        return ""
    # This follows the interpreter: an integer is the status. The interpreter prints any other
    # object, and ends with status 1.
    if not isinstance(code, int):
        return f"status 1: {code}"
    return f"status {code & 0xFF}" if code & 0xFF else ""
