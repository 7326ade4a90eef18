"""Threads in place of the processes of a job: they start at once, not in seconds.

Each thread opens the memory for itself, and saves NumPy arrays and Python values. All other threads
belong to the process of the test, which is in no job.
"""

import concurrent.futures
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import jax

from jax_cxl import _compat
from jax_cxl._store import agreement


class Processes:
    """What the threads exchange.

    Attributes:
      lost: the ranks of the processes that have ended. A process has one rank, its index.
    """

    def __init__(self, count: int):
        self._count = count
        self._own = threading.local()
        self._meeting = threading.Barrier(count, timeout=60)
        self._told: list[Any] = [None] * count
        self._running, self._ending = 0, threading.Lock()
        self.lost: set[int] = set()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Replaces the functions with which the store asks about the job."""
        with ExitStack() as stack:

            def replace(module: Any, name: str, made: Callable[..., Any]) -> None:
                real = getattr(module, name)
                chosen = lambda *args: (real if self.own is None else made)(*args)  # noqa: E731
                stack.enter_context(mock.patch.object(module, name, chosen))

            replace(agreement, "gather", self._gather)
            replace(agreement, "gather_bytes", self._exchange)
            replace(agreement, "processes", lambda: list(range(self._count)))
            replace(agreement, "ranks_of", list)
            lost = lambda of: min(self.lost.intersection(of), default=None)  # noqa: E731
            replace(agreement, "lost_rank", lost)
            replace(_compat.distributed, "process_count", lambda: self._count)
            replace(jax, "process_index", lambda: self.own)
            yield

    @property
    def own(self) -> int | None:
        """The process of this thread, None if it is none of them."""
        return getattr(self._own, "index", None)

    def wait_for_others(self) -> None:
        """Waits until all other processes wait for this one, or have ended."""
        while self._meeting.n_waiting < self._running - 1:
            time.sleep(0.0002)

    def _gather(self, values: Sequence[int]) -> list[tuple[int, ...]]:
        return [tuple(told) for told in self._exchange(values)]

    def _exchange(self, values: Any) -> list[Any]:
        assert self.own is not None
        self._told[self.own] = values
        self._meeting.wait()
        told = list(self._told)
        self._meeting.wait()
        return told

    def run(self, function: Callable[[int], Any]) -> Sequence[Any]:
        """Calls a function in each process; returns what each returns or raises."""

        def one(index: int) -> Any:
            self._own.index = index
            try:
                return function(index)
            except threading.BrokenBarrierError:
                raise
            except Exception as error:
                return error
            finally:
                with self._ending:
                    self._running -= 1

        self._running = self._count
        with concurrent.futures.ThreadPoolExecutor(self._count) as threads:
            return list(threads.map(one, range(self._count)))
