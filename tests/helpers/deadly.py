"""Kills a process in the middle of a write to a store, or after some time."""

import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import numpy as np


class DeadlyMemory:
    """Wraps a native object that writes to memory, and kills the process in one of the writes."""

    def __init__(self, core: Any, deaths: "Deaths"):
        """Wraps `core`, and kills the process in the write that `deaths` chooses.

        `core` has a method `write(..., data)`. It may also have `store_word`, whose calls count as
        writes.
        """
        self._core, self._deaths = core, deaths

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    def write(self, *arguments: Any) -> None:
        """Writes the data, or writes half of it and kills the process."""
        *where, data = arguments
        if self._deaths.is_now():
            self._write_a_half(*where, data)
            self._deaths.die()
        self._core.write(*where, data)

    def store_word(self, *arguments: int) -> None:
        """Stores a word, or kills the process."""
        if self._deaths.is_now():
            self._deaths.die()
        self._core.store_word(*arguments)

    def _write_a_half(self, *arguments: Any) -> None:
        *where, data = arguments
        if where and isinstance(where[-1], np.ndarray):  # rows of a table, and their bytes
            rows = where.pop()
            half = len(rows) // 2
            self._core.write(*where, rows[:half], data[: half * (len(data) // max(len(rows), 1))])
        else:
            self._core.write(*where, data[: len(data) // 2])


class Deaths:
    """Counts writes until the death of the process."""

    def __init__(self, writes: int, before: Callable[[], None] = lambda: None):
        """Lets the process die in write number `writes`. `die` calls `before` first."""
        self._left, self._before = writes, before

    def is_now(self) -> bool:
        """Counts a write, and returns whether the process dies in it."""
        self._left -= 1
        return self._left == 0

    def die(self) -> None:
        """Ends the process as if it had been killed."""
        self._before()
        os.kill(os.getpid(), signal.SIGKILL)


def die_after(seconds: float) -> None:
    """Sets a timer whose signal kills this process."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-6))


def say(**what: object) -> None:
    """Prints a line of JSON in a single write, so that other threads cannot print in its middle."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()
