"""The state of each rank before there is a pool: a byte for each rank, in shared memory.

JAX connects processes by a call that aborts its own process if another process does not join. So a
rank first checks here that all ranks are there.
"""

import mmap
import os

# RUNS: the rank has not begun to connect. CONNECTS: it has begun to connect. ENDED: it ended before
# it began to connect.
RUNS, CONNECTS, ENDED = range(3)


class Board:
    """The states of a job's ranks, which the launcher shares with them."""

    def __init__(self, fd: int, size: int):
        """Maps the board of `size` ranks that is in the file `fd`."""
        self.fd = fd
        self._memory = mmap.mmap(fd, size)

    @classmethod
    def new(cls, size: int) -> "Board":
        """Returns a board for `size` ranks that all run."""
        fd = os.memfd_create("jax_cxl.launch")
        os.ftruncate(fd, size)
        return cls(fd, size)

    def note_connecting(self, rank: int) -> None:
        """Notes that a rank has begun to connect."""
        if self._memory[rank] == RUNS:
            self._memory[rank] = CONNECTS

    def note_end(self, rank: int) -> None:
        """Notes that a rank has ended."""
        if self._memory[rank] == RUNS:
            self._memory[rank] = ENDED

    def ranks(self, state: int) -> list[int]:
        """Returns the ranks that are in `state`."""
        return [rank for rank, found in enumerate(bytes(self._memory)) if found == state]

    def close(self) -> None:
        """Unmaps the board and closes its file."""
        self._memory.close()
        os.close(self.fd)
