"""Errors of compiled programs, as exceptions of `jax_cxl.errors`.

A handler can give XLA only a code and a text. JAX later raises `jax.errors.JaxRuntimeError` with
this text, possibly in another place. The native library remembers which status each text belongs
to. With that status, this module makes JAX's exception an instance of both JAX's class and
jax_cxl's.
"""

import functools
from collections.abc import Callable, Iterable
from typing import Any

import jax

from jax_cxl import _compat, _core, errors
from jax_cxl._job import failed_programs


def _of_handlers(text: str) -> Any:
    return _core.FAILURES.find(text) if "jax_cxl: " in text else None


# Each function gets the text of every JaxRuntimeError. The first that returns a failure decides.
_sources: list[Callable[[str], Any]] = [_of_handlers]


def add_source(find: Callable[[str], Any]) -> None:
    """Adds a function that finds the reason for which a program failed.

    An engine needs such a function if its errors do not reach XLA as a text. For example, a kernel
    that gives up causes a CUDA error without a reason, and the CUDA module has the reason.

    `find` takes the text of a `jax.errors.JaxRuntimeError`. It returns the arguments of
    `errors.from_code`, or None if the error is not one of jax_cxl's. It must not raise, and runs in
    the thread that raises the error.
    """
    _sources.append(find)


@functools.cache
def install() -> None:
    """Makes errors of collectives in compiled programs instances of jax_cxl's classes."""
    failed_programs.install()
    _compat.dispatch.make_runtime_errors(_make)
    _core.translate_dispatch_errors(type(jax.jit(lambda: None)), _make)


def _make(text: str) -> BaseException | None:
    """Returns jax_cxl's exception for the text of a JaxRuntimeError, None for other errors."""
    for find in _sources:
        failure = find(text)
        if failure is not None:
            return _exception(*failure)
    failed_programs.look(text)
    return None


def _exception(code: str, message: str, details: Iterable[tuple[str, str]] = ()) -> errors.CxlError:
    kind = errors.BY_CODE_IN_PROGRAM.get(code, errors.CxlError)
    error = _both(kind)(errors.message_of(code, message))
    errors.add_details(error, details)
    return error


@functools.cache
def _both(kind: Any) -> Any:
    """Returns the class that derives from both `kind` and JAX's class."""

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        # Python runs this twice: first by `_exception` with jax_cxl's message, then with the
        # arguments that JAX passes to JaxRuntimeError. JAX's arguments set `error_code` and
        # `error_message`. Users see jax_cxl's message.
        message = self.args or args
        jax.errors.JaxRuntimeError.__init__(self, *args, **kwargs)
        self.args = message

    def __reduce__(self: Any) -> Any:
        return _rebuild, (kind, self.args, self.__dict__)

    # The base class with the larger memory layout has to make the object. TimeoutError is an
    # OSError.
    base: Any = OSError if issubclass(kind, OSError) else Exception
    members = {
        "__doc__": kind.__doc__,
        "__init__": __init__,
        "__module__": kind.__module__,
        "__new__": lambda cls, *_, **__: base.__new__(cls),
        "__qualname__": kind.__qualname__,
        "__reduce__": __reduce__,
        "__str__": lambda self: str(self.args[0]),
    }
    return type(kind.__name__, (kind, jax.errors.JaxRuntimeError), members)


def _rebuild(kind: Any, args: tuple, attributes: dict[str, Any]) -> Any:
    error = _both(kind)(*args)
    error.__dict__.update(attributes)
    return error
