"""What ranks know of each other before JAX connects them: a byte for each, in shared memory.

JAX connects processes in a call that aborts the process if one of them does not come. So a rank
looks here first whether all ranks have come.
"""

import mmap
import os

# A rank that runs and has not begun to connect, one that has, and one that ended without.
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

    def note(self, rank: int, state: int) -> None:
        """Notes the state of a rank. What a rank has begun stays begun."""
        if self._memory[rank] == RUNS:
            self._memory[rank] = state

    def ranks(self, state: int) -> list[int]:
        """Returns the ranks in a state."""
        return [rank for rank, found in enumerate(bytes(self._memory)) if found == state]

    def close(self) -> None:
        """Unmaps the board and closes its file."""
        self._memory.close()
        os.close(self.fd)
