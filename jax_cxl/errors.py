"""Exceptions of jax_cxl.

Whatever goes wrong outside a compiled program raises one of these. Inside one,
JAX raises `jax.errors.JaxRuntimeError`, or `ValueError` when the program failed
before it was dispatched; the message holds the code and the text of the same
error ("jax_cxl: PEER_LOST: rank 1 (pid 4711 on host a) is gone: ...").
"""


class CxlError(RuntimeError):
    """Base class of all errors of jax_cxl."""


class NotInitializedError(CxlError):
    """Something was used too early, too late, or after an error ended it."""


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
    """A pool's description is wrong, for example misaligned."""


class PeerLostError(CxlError):
    """The process of another rank ended."""


class CollectiveTimeoutError(CxlError, TimeoutError):
    """Another rank lives, but did not join a collective in time."""


class MismatchError(CxlError):
    """The ranks disagree about a collective or about a setting."""


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


def from_code(code: str, message: str) -> CxlError:
    """Returns the exception for a status of the native library.

    Args:
      code: `jax_cxl::CodeName` of the status (cc/base/status.h).
      message: its message.
    """
    return BY_CODE.get(code, CxlError)(message)
