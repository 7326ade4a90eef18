"""Programs and host callbacks while they run, and their exceptions."""

import functools
import logging
import sys
import types
from collections.abc import Callable
from typing import Any

import jax


def make_runtime_errors(make: Callable[[str], BaseException | None]) -> None:
    """Lets `make` choose the exception in place of JAX's `jax.errors.JaxRuntimeError`.

    XLA's errors become Python exceptions in native code, at many places: dispatch,
    `block_until_ready`, `np.asarray`, `jax.device_get`. All of these places instantiate
    JaxRuntimeError. This function replaces the `__new__` of the class, which may return an instance
    of a subclass; Python then raises that instance. If `make` returns None for the error's text,
    the class behaves as before. docs/decisions/0005 explains the alternatives.
    """
    base: Any = jax.errors.JaxRuntimeError

    @functools.wraps(base.__new__)
    def new(cls: Any, *args: Any, **kwargs: Any) -> Any:
        text = args[0] if args else kwargs.get("msg")
        error = make(text) if cls is base and isinstance(text, str) else None
        return RuntimeError.__new__(cls, *args, **kwargs) if error is None else error

    base.__new__ = new


def watch_callbacks(notify: Callable[[BaseException], None]) -> None:
    """Calls `notify` with exceptions in host callbacks, such as those of `jax.pure_callback`.

    It does so when JAX logs the exception: in the thread that runs the callback, and before JAX
    passes the exception to XLA.
    """

    def on_record(record: logging.LogRecord) -> bool:
        if record.exc_info and record.exc_info[1] is not None:
            notify(record.exc_info[1])
        return True

    for name in ("jax._src.callback", "jax._src.debugging"):
        logging.getLogger(name).addFilter(on_record)


def starts_program_over_processes() -> bool:
    """Returns whether a thread is inside JAX's start of a program over several processes.

    JAX starts programs with host callbacks in Python. It starts other programs in native code,
    where this function does not see them.
    """
    for frame in sys._current_frames().values():
        inner: types.FrameType | None = frame
        while inner is not None:
            if inner.f_code.co_qualname == "ExecuteReplicated.__call__":
                program = inner.f_locals["self"]
                shardings = (
                    *program.in_handler.in_shardings,
                    *program.out_handler.out_shardings,
                )
                if not all(sharding.is_fully_addressable for sharding in shardings):
                    return True
            inner = inner.f_back
    return False
