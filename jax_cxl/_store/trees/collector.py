"""Python's garbage collector, while a tree is read or written."""

import contextlib
import gc
import threading
from collections.abc import Iterator

_lock = threading.Lock()
_pauses = 0
_was_enabled = False  # before the first pause


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """Pauses the collector, for all threads. It also works as a decorator.

    A tree of thousands of leaves makes many objects. They form no cycles, but the collector
    searches all objects of the program again and again, which takes a third of the time of a
    restore.
    """
    global _pauses, _was_enabled
    with _lock:
        if _pauses == 0:
            _was_enabled = gc.isenabled()
            gc.disable()
        _pauses += 1
    try:
        yield
    finally:
        with _lock:
            _pauses -= 1
            if _pauses == 0 and _was_enabled:
                gc.enable()
