"""Threads in place of the processes of a job: they start at once, not in seconds.

Each thread opens the memory for itself, and saves NumPy arrays and Python values.
"""

import concurrent.futures
import threading
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
        self.lost: set[int] = set()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Replaces the functions with which the store asks about the job."""
        with ExitStack() as stack:
            stack.enter_context(
                mock.patch.multiple(
                    agreement,
                    gather=self._gather,
                    gather_bytes=self._exchange,
                    processes=lambda: list(range(self._count)),
                    ranks_of=list,
                    lost_rank=lambda of: min(self.lost.intersection(of), default=None),
                )
            )
            stack.enter_context(
                mock.patch.object(_compat.distributed, "process_count", lambda: self._count)
            )
            stack.enter_context(mock.patch.object(jax, "process_index", lambda: self._own.index))
            yield

    def _gather(self, values: Sequence[int]) -> list[tuple[int, ...]]:
        return [tuple(told) for told in self._exchange(values)]

    def _exchange(self, values: Any) -> list[Any]:
        self._told[self._own.index] = values
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

        with concurrent.futures.ThreadPoolExecutor(self._count) as threads:
            return list(threads.map(one, range(self._count)))
