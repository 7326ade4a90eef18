"""Lets another process act at any single load of a store's memory."""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np

from jax_cxl import _core

# All Python code of the package loads the memory of a store by these functions. What `Sessions`
# does takes several loads.
_OF_SESSIONS = ("add_lease", "remove_lease", "holders_of", "living", "holds", "lock", "unlock")


class Loads:
    """The loads of one call.

    Attributes:
      count: how many there were.
      acted: whether the other process has acted.
    """

    def __init__(self, number: int | None, act: Callable[[], object]):
        self.count = 0
        self.acted = False
        self._number, self._act = number, act
        self._acting = self._locked = False

    def next(self) -> None:
        """Counts a load. The other process acts before the load with the chosen number."""
        # While this process has the lock, another one would wait for it.
        if self._acting or self._locked:
            return
        if self.count == self._number and not self.acted:
            self._acting = self.acted = True
            self._act()
            self._acting = False
        self.count += 1

    def end(self) -> None:
        """Counts no more loads. An object that was made during the call may still call `next`."""
        self._acting = True

    def read(self, real: Any, core: Any, device: int, offset: int, out: np.ndarray) -> None:
        """Reads in two halves, because another process may write between any two words."""
        flat, half = out.view(np.uint8), out.nbytes // 16 * 8
        self.next()
        if half:
            real(core, device, offset, flat[:half])
            self.next()
        real(core, device, offset + half, flat[half:])

    def load_word(self, real: Any, core: Any, *where: int) -> Any:
        """Loads a word."""
        self.next()
        return real(core, *where)

    def of_sessions(self, name: str, real: Any, sessions: Any, *args: Any) -> Any:
        """Looks at the table of sessions, or changes it."""
        if name != "unlock":
            self.next()
        result = real(sessions, *args)
        if not self._acting and name in ("lock", "unlock"):
            self._locked = name == "lock"
        return result


@contextmanager
def act_at(
    number: int | None, act: Callable[[], object], counts: Callable[[], bool] = lambda: True
) -> Iterator[Loads]:
    """Calls `act` before the load with this number, counted from 0; never for None.

    Args:
      number: the number.
      act: may use stores itself. Its own loads are not counted.
      counts: whether loads of the calling thread are counted.
    """
    loads = Loads(number, act)
    with contextlib.ExitStack() as stack:

        def patch(kind: Any, name: str, call: Callable[..., Any]) -> None:
            real = getattr(kind, name)

            def load(*args: Any) -> Any:
                return call(real, *args) if counts() else real(*args)

            stack.enter_context(mock.patch.object(kind, name, load))

        patch(_core.PersistentMemory, "read", loads.read)
        patch(_core.PersistentMemory, "load_word", loads.load_word)
        for name in _OF_SESSIONS:
            patch(
                _core.Sessions,
                name,
                lambda real, *args, name=name: loads.of_sessions(name, real, *args),
            )
        yield loads
        loads.end()
