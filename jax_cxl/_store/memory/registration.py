"""Registers the memory with CUDA by PyTorch, in programs whose jax_cxl has no CUDA module."""

import contextlib
import weakref
from typing import Any

from jax_cxl import _core, errors

# CUDA refuses to register 512 GiB or more at once.
_PIECE_BYTES = 256 << 30
_PORTABLE_AND_MAPPED = 1 | 2  # cudaHostRegisterPortable, cudaHostRegisterMapped


class Registration:
    """Keeps mapped memory registered, so that copy engines read it directly."""

    def __init__(self, torch: Any, core: _core.PersistentMemory):
        """Registers all bytes."""
        cudart = torch.cuda.cudart()
        pieces: list[int] = []
        # The finalizer has the memory, which therefore stays mapped while it is registered.
        weakref.finalize(self, _end, cudart, pieces, core).atexit = False
        for offset in range(0, core.total_bytes, _PIECE_BYTES):
            size = min(_PIECE_BYTES, core.total_bytes - offset)
            code = int(cudart.cudaHostRegister(core.base + offset, size, _PORTABLE_AND_MAPPED))
            if code:
                # PyTorch would take CUDA's note of this error for one of its next kernel.
                with contextlib.suppress(RuntimeError):
                    torch.zeros(1, device="cuda")
                raise errors.CxlError(f"CUDA cannot register the store's memory (error {code})")
            pieces.append(core.base + offset)


def _end(cudart: Any, pieces: list[int], core: _core.PersistentMemory) -> None:
    del core
    for piece in pieces:
        cudart.cudaHostUnregister(piece)
