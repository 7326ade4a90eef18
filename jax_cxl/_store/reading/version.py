"""What a read returns."""

import contextlib
import dataclasses
import threading
import weakref
from collections.abc import Iterator
from typing import Any

from jax_cxl._store.reading import into_gpus
from jax_cxl._store.reading.reusing import Reusable


class Pending:
    """Copies to GPUs that have been started, of a version that is leased until they are checked."""

    def __init__(self, copies: into_gpus.Copies, lease: contextlib.ExitStack, reusable: Reusable):
        """Notes the copies, what ends the lease, and what the result will hold."""
        self.copies, self._reusable = copies, reusable
        self._problem: BaseException | None = None
        self._lock = threading.Lock()
        # If nobody checks the copies, the lease still ends after them.
        self._abandon = weakref.finalize(self, _abandon, copies, lease)
        self._abandon.atexit = False

    def check(self, again: bool = True) -> None:
        """Checks the copies. Raises their error; if `again`, also that of an earlier call."""
        with self._lock:
            if (taken := self._abandon.detach()) is not None:
                with taken[2][1]:
                    try:
                        self.copies.finish()
                    except BaseException as error:
                        self._reusable.forget()
                        self._problem = error
                        raise
            elif again and self._problem is not None:
                raise self._problem


def _abandon(copies: into_gpus.Copies, lease: contextlib.ExitStack) -> None:
    with lease:
        copies.wait()


@dataclasses.dataclass(frozen=True)
class Version:
    """A version of a tree that was read. It unpacks into `version, tree`.

    Attributes:
      version: its number, as the publisher gave it.
      tree: the tree.
    """

    version: int
    tree: Any
    _reusable: Reusable = dataclasses.field(repr=False, compare=False)
    _pending: Pending | None = dataclasses.field(default=None, repr=False, compare=False)

    def __iter__(self) -> Iterator[Any]:
        return iter((self.version, self.tree))

    def wait(self) -> None:
        """Lets PyTorch's current streams wait for the copies of a read with `non_blocking`.

        It returns at once. What the program enqueues afterwards sees the new values. These have not
        been checked yet: call `check` before you use results.
        """
        if self._pending is not None:
            self._pending.copies.let_streams_wait()

    def check(self) -> None:
        """Waits until a read with `non_blocking` has ended, and checks what it has read.

        Until then the version is not overwritten.

        Raises:
          StoreError: the version is damaged, and the values of the tensors are undefined.
        """
        if self._pending is not None:
            self._pending.check()
