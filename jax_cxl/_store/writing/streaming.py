"""A version whose arrays are written one after another, as soon as each is available."""

import concurrent.futures
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from jax_cxl._store.writing.saving import Batch, Selection


class Stream:
    """A version that is being written. The thread that saves takes the arrays from here."""

    def __init__(
        self, selection: Selection, num_leaves: int, fail: Callable[[Exception], None]
    ) -> None:
        """Begins with the first leaf. `fail` tells the other processes that this one gives up."""
        self._selection, self._num_leaves, self._fail = selection, num_leaves, fail
        self._next = 0  # the next leaf
        self._changed = threading.Condition()
        self._waiting: Batch | None = None  # while another batch is being written
        self._ended = self._stopped = False
        self._problem: BaseException | None = None

    def write(self, arrays: Mapping[int, Any]) -> None:
        """Writes the next leaves, by their numbers. Waits while earlier leaves still wait.

        The values need not have been computed. Nobody may donate the arrays afterwards.
        """
        numbers = sorted(arrays)
        expected = list(range(self._next, self._next + len(numbers)))
        assert numbers == expected, f"leaves {numbers} are written, not {expected}"
        self._next += len(numbers)
        batch = self._selection.hold(arrays, copy=False, owned=True)
        with self._changed:
            self._changed.wait_for(lambda: self._waiting is None or self._stopped)
            if self._stopped:
                raise self._problem or RuntimeError("the version has been closed")
            self._waiting = batch
            self._changed.notify_all()

    def close(self) -> None:
        """Says that all leaves have been given."""
        assert self._next == self._num_leaves, "leaves are missing"
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def abort(self, error: BaseException) -> None:
        """Gives the version up: it never becomes valid."""
        with self._changed:
            self._problem = self._problem or error
            self._changed.notify_all()
        self._fail(error if isinstance(error, Exception) else RuntimeError(repr(error)))

    def stop(self, thread: "concurrent.futures.Future[None]") -> None:
        """Takes no more arrays, because the thread that saves has ended."""
        with self._changed:
            self._stopped = True
            self._problem = self._problem or thread.exception()
            self._waiting = None
            self._changed.notify_all()

    def __iter__(self) -> Iterator[Batch]:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._ended or self._problem)
                if self._problem is not None:
                    raise self._problem
                if self._waiting is None:
                    return
                batch, self._waiting = self._waiting, None
                self._changed.notify_all()
            yield batch
