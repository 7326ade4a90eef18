"""Deaths of a process: before one of its writes to a store, or at some time."""

import os
import signal
from collections.abc import Callable


class DeadlyMemory:
    """The memory of a store. The process dies before one of the writes to it."""

    def __init__(self, core, writes: int, tell: Callable[[], None]):
        """Dies after some more writes, and calls `tell` before."""
        self._core = core
        self._left = writes
        self._tell = tell

    def __getattr__(self, name):
        return getattr(self._core, name)

    def _count(self) -> None:
        if self._left == 0:
            self._tell()
            os.kill(os.getpid(), signal.SIGKILL)
        self._left -= 1

    def write(self, *arguments) -> None:
        self._count()
        self._core.write(*arguments)

    def store_word(self, *arguments) -> None:
        self._count()
        self._core.store_word(*arguments)


def die_after(seconds: float) -> None:
    """Lets the process die at a later time."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-6))
