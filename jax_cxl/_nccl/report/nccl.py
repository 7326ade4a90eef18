"""Calls NCCL's functions by ctypes, for programs that use them without a framework."""

from __future__ import annotations

import ctypes
from typing import Any

IN_PROGRESS = 7
SUM, FLOAT32, BFLOAT16 = 0, 7, 9


class UniqueId(ctypes.Structure):
    """ncclUniqueId."""

    _fields_ = (("internal", ctypes.c_byte * 128),)


class Library:
    """A libnccl.so.2: by default that which the process finds. Errors of NCCL are RuntimeError."""

    def __init__(self, path: str = "libnccl.so.2") -> None:
        self._library = ctypes.CDLL(path)
        self._library.ncclGetLastError.restype = ctypes.c_char_p
        self._library.ncclGetLastError.argtypes = (ctypes.c_void_p,)

    def function(self, name: str) -> Any:
        """Returns the function `name`, which returns a result of NCCL."""
        return getattr(self._library, name)

    def call(self, name: str, *arguments: Any) -> int:
        """Calls the function `name`; returns ncclSuccess or ncclInProgress."""
        result = int(self.function(name)(*arguments))
        if result not in (0, IN_PROGRESS):
            raise RuntimeError(f"{name} returned {result}: {self.last_error(None)}")
        return result

    def last_error(self, comm: ctypes.c_void_p | None) -> str:
        """Returns the text of ncclGetLastError."""
        return (self._library.ncclGetLastError(comm) or b"").decode()

    def async_error(self, comm: ctypes.c_void_p) -> int:
        """Returns the result that ncclCommGetAsyncError gives for a communicator."""
        error = ctypes.c_int()
        self.call("ncclCommGetAsyncError", comm, ctypes.byref(error))
        return error.value

    def unique_id(self) -> bytes:
        """Returns a new unique id."""
        unique = UniqueId()
        self.call("ncclGetUniqueId", ctypes.byref(unique))
        return bytes(unique)
