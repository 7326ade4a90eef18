"""Threads in place of the processes of a job: they start at once, not in seconds.

Each thread opens the memory for itself, and saves NumPy arrays and Python values. All other threads
belong to the process of the test, which is in no job.
"""

import collections
import concurrent.futures
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import jax

from jax_cxl import _compat, errors
from jax_cxl._job import configuration
from jax_cxl._store import agreement


class Processes:
    """What the threads exchange.

    Attributes:
      lost: the ranks of the processes that have ended. A process has one rank, its index.
    """

    def __init__(self, count: int):
        self._count = count
        self._own = threading.local()
        self._changed = threading.Condition()
        self._numbers: collections.Counter[tuple[int, str]] = collections.Counter()
        self._told: dict[tuple[str, int], dict[int, bytes]] = collections.defaultdict(dict)
        # By process: the exchange in which it is.
        self._waits: dict[int, dict[int, bytes]] = {}
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
        while sum(len(told) < self._count for told in self._waits.copy().values()) < (
            self._running - 1
        ):
            time.sleep(0.0002)

    def _exchange(
        self, data: bytes, topic: str = "store", what: str = "", timeout: float | None = None
    ) -> list[bytes]:
        """Does what `agreement.gather_bytes` does between processes."""
        own = self.own
        assert own is not None
        if timeout is None:  # Only saves are late in tests.
            timeout = configuration.from_environment().timeout if "save" in topic else 60
        end = time.monotonic() + timeout
        with self._changed:
            self._numbers[own, topic] += 1
            told = self._told[topic, self._numbers[own, topic]]
            told[own] = data
            self._waits[own] = told
            self._changed.notify_all()
            try:
                while missing := set(range(self._count)) - told.keys():
                    if self.lost & missing:
                        raise errors.PeerLostError(f"{what}: rank {min(self.lost)} is gone")
                    if time.monotonic() >= end:
                        raise errors.CollectiveTimeoutError(
                            f"{what}: {sorted(missing)} did not arrive within {timeout:g} s"
                        )
                    self._changed.wait(0.01)
            finally:
                del self._waits[own]
        return [told[process] for process in range(self._count)]

    def run(self, function: Callable[[int], Any]) -> Sequence[Any]:
        """Calls a function in each process; returns what each returns or raises."""

        def one(index: int) -> Any:
            self._own.index = index
            try:
                return function(index)
            except Exception as error:
                return error
            finally:
                with self._ending:
                    self._running -= 1

        self._running = self._count
        with concurrent.futures.ThreadPoolExecutor(self._count) as threads:
            return list(threads.map(one, range(self._count)))
