"""Errors of compiled programs, as exceptions of `jax_cxl.errors`.

A handler can give XLA no more than a text, and what surfaces, possibly much later and in another
place, is `jax.errors.JaxRuntimeError` with this text. The native library remembers what the text
stands for; here JAX's exception becomes an instance of both JAX's class and ours.
"""

import functools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax

from jax_cxl import _compat, _core, errors


class Failure(NamedTuple):
    """What is known of a failure.

    Attributes:
      code: `jax_cxl::CodeName` of its status.
      message: for people, names culprit and remedy.
      details: facts for programs, name and value: see `errors.PeerLostError`.
    """

    code: str
    message: str
    details: Iterable[tuple[str, str]] = ()


def _of_handlers(text: str) -> Failure | None:
    found: Any = _core.find_failure(text) if "jax_cxl: " in text else None
    return None if found is None else Failure(*found)


# Each is asked for the text of every JaxRuntimeError; the first answer counts.
_sources: list[Callable[[str], Failure | None]] = [_of_handlers]


def add_source(find: Callable[[str], Failure | None]) -> None:
    """Adds a way to find out why a program failed.

    For engines whose errors do not reach XLA as a text: a kernel that gives up surfaces as a CUDA
    error that names nobody, and its reason is found elsewhere.

    Args:
      find: takes the text of a `jax.errors.JaxRuntimeError`; returns what failed, or None where the
        error is not one of jax_cxl's. It must not raise, and runs in whichever thread raises.
    """
    _sources.append(find)


@functools.cache
def install() -> None:
    """From now on, errors of compiled programs that are ours have our classes."""
    _compat.make_runtime_errors(_make)
    _core.translate_dispatch_errors(_compat.jitted_function_type(), _make)


def _make(text: str) -> BaseException | None:
    """Returns the exception for the text of a JaxRuntimeError, None if it is not one of ours."""
    for find in _sources:
        failure = find(text)
        if failure is not None:
            return _exception(*failure)
    return None


def _exception(code: str, message: str, details: Iterable[tuple[str, str]]) -> errors.CxlError:
    kind = errors.BY_CODE_IN_PROGRAM.get(code, errors.CxlError)
    error = _both(kind)(message)
    errors.add_details(error, details)
    return error


@functools.cache
def _both(kind: Any) -> Any:
    """Returns the class that is both `kind` and JAX's."""

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        # First with our message, then by Python with what JAX passes to the JaxRuntimeError that it
        # takes this for: that is behind `error_code` and `error_message`, ours is what is shown.
        message = self.args or args
        jax.errors.JaxRuntimeError.__init__(self, *args, **kwargs)
        self.args = message

    def __reduce__(self: Any) -> Any:
        return _rebuild, (kind, self.args, self.__dict__)

    # The base with the larger layout makes the object: TimeoutError and its like are OSErrors.
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
