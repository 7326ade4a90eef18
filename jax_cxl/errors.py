"""Exceptions of jax_cxl.

Every failure of jax_cxl raises one of these: in `jax_cxl.initialize`, where a compiled program is
started, or where the program waits for its result. An exception from a compiled program is also an
instance of `jax.errors.JaxRuntimeError`. `docs/errors.md` has advice for each of them.
"""

import contextlib
import os
from collections.abc import Iterable
from typing import Any

from jax_cxl import _text


class CxlError(RuntimeError):
    """Base class of all errors of jax_cxl.

    Attributes:
      told_by: rank that reported the error to this rank; None if this rank found it.
    """

    told_by: int | None = None


class NotInitializedError(CxlError):
    """Something was used before it was started, after it was closed, or after an error ended it."""


class PoolError(CxlError):
    """The pool cannot be used; base class of the more specific errors."""


class PoolTooSmallError(PoolError):
    """The pool, or the memory that should back it, is too small."""


class PoolNotFoundError(PoolError, FileNotFoundError):
    """A path of the pool does not exist."""


class PoolPermissionError(PoolError, PermissionError):
    """This user may not use a path of the pool."""


class PoolInUseError(PoolError):
    """Another job uses a pool of this name or path."""


class PoolCorruptError(PoolError):
    """A path holds something that is not a pool of this job."""


class InvalidPoolError(PoolError, ValueError):
    """The description of a pool is wrong. For example, its size is misaligned."""


class StoreError(PoolError):
    """A version is missing or damaged, or does not fit; or its place holds something else."""

    def __init__(self, message: str) -> None:
        # The message may contain names from the memory, which may be damaged.
        super().__init__(_text.printable(message))


class StoreTimeoutError(StoreError, TimeoutError):
    """No version came in time."""


class InvalidCollectiveError(CxlError, ValueError):
    """A collective got values that it cannot work with, such as sizes that do not fit."""


class _PeerError(CxlError):
    rank: int | None = None
    pid: int | None = None
    host: str | None = None
    last: str | None = None
    call: str | None = None


class PeerLostError(_PeerError):
    """The process of another rank ended.

    Attributes:
      rank: the rank that is gone, an index into `jax.devices()`.
      pid: its process id.
      host: name of its host.
      last: the rank's last recorded activity, for example "finished psum: all_reduce sum of 4
        float32, its collective number 7".
      call: the collective in which this rank waited for the rank that is gone.
    """


class CollectiveTimeoutError(_PeerError, TimeoutError):
    """Another rank lives, but did not join a collective in time.

    Its other attributes are those of `PeerLostError`, for the rank that was waited for.

    Attributes:
      waited_s: for how many seconds it waited.
    """

    waited_s: float | None = None


class MismatchError(CxlError):
    """The ranks disagree about a collective or about a setting.

    Attributes:
      ranks: two ranks that disagree, indices into `jax.devices()`.
      calls: what each of them calls, and where: "psum: all_reduce sum of 4 float32 at train.py:9".
    """

    ranks: tuple[int, ...] = ()
    calls: tuple[str, ...] = ()


BY_CODE = {
    "INVALID_ARGUMENT": InvalidPoolError,
    "NOT_FOUND": PoolNotFoundError,
    "ALREADY_EXISTS": PoolInUseError,
    "PERMISSION_DENIED": PoolPermissionError,
    "RESOURCE_EXHAUSTED": PoolTooSmallError,
    "FAILED_PRECONDITION": NotInitializedError,
    "DATA_LOSS": PoolCorruptError,
    "PEER_LOST": PeerLostError,
    "DEADLINE_EXCEEDED": CollectiveTimeoutError,
    "MISMATCH": MismatchError,
}

# Inside a compiled program, INVALID_ARGUMENT is about a collective, not about a pool.
BY_CODE_IN_PROGRAM = BY_CODE | {"INVALID_ARGUMENT": InvalidCollectiveError}


# Name of a detail that comes with a status of the native library -> its type.
_DETAILS: dict[str, type] = {
    **dict.fromkeys(("told_by", "rank", "pid", "rank_0", "rank_1"), int),
    **dict.fromkeys(("host", "last", "call", "call_0", "call_1"), str),
    "waited_s": float,
}

# The end of the message of an error that no program or machine should cause.
_REPORT = (
    ". This looks like a fault of jax_cxl: please report it, with the end of the output of"
    " python -m jax_cxl doctor"
)
# The end of the message for a lost rank, unless the message already says what to do.
_OUTPUT = ". The output of the lost rank may have the reason. "


def _advice_if_lost() -> str:
    """Returns how a program can go on without a rank.

    That depends on the launcher, whose variables are in `_job/variables.py`.
    """
    if "JAX_CXL_LAUNCH_GO_ON" in os.environ:
        return "On CPUs jax_cxl.regroup() continues without it"
    if "JAX_CXL_LAUNCH_SIZE" in os.environ:
        return (
            "This launcher now ends all ranks. With its option --go-on they may continue without it"
            " (jax_cxl.regroup), and with --restarts N they start again"
        )
    return "Start all processes again; under python -m jax_cxl.launch --go-on others may continue"


def message_of(code: str, message: str) -> str:
    """Returns the message of an exception for a status of the native library."""
    if code == "INTERNAL" and "please report" not in message:
        return message.rstrip(".") + _REPORT
    if code == "PEER_LOST" and "regroup" not in message:
        return message.rstrip(".") + _OUTPUT + _advice_if_lost()
    return message


def code_of(error: BaseException) -> str | None:
    """Returns the code for which `from_code` makes this kind of exception, or None."""
    return next((code for code, kind in BY_CODE.items() if type(error) is kind), None)


def from_code(code: str, message: str, details: Iterable[tuple[str, str]] = ()) -> CxlError:
    """Returns the exception for a status of the native library.

    Args:
      code: `jax_cxl::CodeName` of the status (cc/base/status.h).
      message: its message.
      details: its details.
    """
    error = BY_CODE.get(code, CxlError)(message_of(code, message))
    add_details(error, details)
    return error


def add_details(error: CxlError, details: Iterable[tuple[str, str]]) -> None:
    """Sets the attributes of an exception from the details of a status."""
    facts: dict[str, Any] = {}
    for name, text in details:
        # A detail may come from another process: leave it out if it is not a number.
        with contextlib.suppress(ValueError, KeyError):
            facts[name] = _DETAILS[name](text)
    if isinstance(error, MismatchError):
        # There is one detail for each of the two ranks.
        sides = [side for side in (0, 1) if {f"rank_{side}", f"call_{side}"} <= facts.keys()]
        error.ranks = tuple(facts[f"rank_{side}"] for side in sides)
        error.calls = tuple(facts[f"call_{side}"] for side in sides)
    for name, value in facts.items():
        if hasattr(error, name):
            setattr(error, name, value)
