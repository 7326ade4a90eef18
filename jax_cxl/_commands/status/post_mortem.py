"""Reads the last calls of ranks that have ended, and removes the files that they left."""

import contextlib
import os
import pathlib
import stat
import sys
from collections.abc import Collection


class HeldPool:
    """A job's pool. The supervisor, which outlives the ranks, keeps the pool open."""

    def __init__(self) -> None:
        self._fd: int | None = None
        self._offset = 0

    def hold(self, fd: int, offset: int) -> None:
        """Keeps the pool at `offset` of an open file, and releases the pool that it kept before."""
        self._release()
        # Open the file again. The rank's own descriptor would keep the rank's lock on the pool even
        # after the rank's end, and a locked pool counts as the pool of a living job.
        with contextlib.suppress(OSError):
            self._fd = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
        self._offset = offset

    def remove_leftovers(self) -> None:
        """Removes the name of a pool that a rank had just created when it was killed.

        The other ranks cannot always do this, because they learn of a death before the kernel has
        closed the files of the dead process. Until then, the pool is locked.
        """
        if self._fd is not None:
            from jax_cxl import _core

            _core.sweep_leftovers()

    def report(self, path: pathlib.Path | None, ended: Collection[int]) -> None:
        """Prints which rank waited for which, and may write a copy of the recorders to a file.

        `ended` has the process ids of the ranks that the launcher has ended.
        """
        if self._fd is None:
            return
        from jax_cxl import _core, errors
        from jax_cxl._commands.status import analysis

        try:
            job_record = _core.read_job_record(self._fd, self._offset, "the pool of the job")
            lines = analysis.sentences(analysis.read(job_record, calls=64, ended=ended))
            if path is not None:
                with open(path, "wb", opener=_private) as file:
                    file.write(job_record.to_bytes())
                lines.append(f"kept for python -m jax_cxl status: {path}")
        except (OSError, errors.PoolError) as error:
            lines = [f"no post mortem: {error}"]
        finally:
            self._release()
        for line in lines:
            print(f"jax_cxl.launch: {line}", file=sys.stderr)

    def _release(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _private(path: str, flags: int) -> int:
    """Opens a file that only this user may read, because it names programs, files and hosts."""
    fd = os.open(path, flags, 0o600)
    if stat.S_ISREG(os.fstat(fd).st_mode):  # Not a pipe or a device.
        os.fchmod(fd, 0o600)
    return fd
