"""Notices programs over several processes that fail outside of their collectives.

A host callback may raise, or memory may run out, on one rank only. The other ranks then wait in
collectives that this rank never starts, so this rank tells them that its program has failed
(cc/comm/health/peers.h). They give up, unless the program has failed on them too.

A program in one process does not concern other ranks. XLA does not name the failed program, but the
program's results are arrays whose values are errors. So this module looks for such arrays among
the arrays that span several processes. If a program fails while JAX starts it, there are no
results yet, so the module watches the start itself.
"""

import atexit
import threading
from collections.abc import Iterable
from typing import Any

import jax

from jax_cxl import _compat, _core

# After a host callback has failed, its program fails within this many seconds.
_SOON = 10.0
_POLL_SECONDS = 0.05

_told: list[str] = []
_looking = threading.local()
_ending = threading.Event()
# For each host callback that has failed, and whose program may not have ended: a thread that waits
# for the end, the text of the error, and what ends the wait.
_failing: dict[threading.Thread, tuple[str, threading.Event]] = {}
_failing_lock = threading.Lock()


def install() -> None:
    """Begins to watch the host callbacks of JAX."""
    _compat.dispatch.watch_callbacks(_on_callback_failure)
    atexit.register(_stop)


def look(reason: str) -> None:
    """Tells the other ranks if the result of a program over several processes has failed.

    `reason` is the text of an error that is not jax_cxl's.
    """
    if getattr(_looking, "now", False):
        return
    if _failed_of(_arrays()):
        _tell(reason)
    with _failing_lock:
        for text, ended in _failing.values():
            if text in reason and not ended.is_set():
                ended.set()
                break


def _tell(reason: str) -> None:
    # Tell each text only once: the results of a program, and of programs that use them, all fail
    # with the same text.
    if not any(known in reason for known in _told):
        _told.append(reason)
        _core.note_failed_program(reason)


def _on_callback_failure(error: BaseException) -> None:
    """Tells the other ranks about a failed host callback if its program runs on several processes.

    If JAX is still starting such a program, this tells them at once. Otherwise a new thread waits
    until a result of the program has failed. The thread that reads the results may be too late: it
    may wait for another device of this process, whose collective waits for the failed device.

    The program may have started collectives that the other ranks leave out, if it fails there too.
    It ends once the stall detector has ended them, for which it has to know of the failure.
    """
    reason = f"{type(error).__name__}: {error}"
    if _compat.dispatch.starts_program_over_processes():
        _tell(reason)
    arrays = _arrays()
    running = [array for array in arrays if not array.is_ready()]
    ready = [array for array in arrays if array.is_ready()]
    ended = threading.Event()
    thread = threading.Thread(
        target=_wait,
        args=(running, ready, reason, ended),
        name="jax_cxl failed programs",
        daemon=True,
    )
    with _failing_lock:
        _failing[thread] = reason, ended
        _core.note_failed_callbacks(len(_failing))
    thread.start()


def _wait(running: list[Any], ready: list[Any], reason: str, ended: threading.Event) -> None:
    """Waits until a result of the program has failed, or `look` has seen its error.

    Arrays that were `ready` when the callback failed are not of this program.
    """
    before = {id(array) for array in ready}
    for _ in range(int(_SOON / _POLL_SECONDS)):
        # The results may not exist yet, because JAX makes them only after it has started the
        # program. So look for new arrays each time.
        if _ending.wait(_POLL_SECONDS) or ended.is_set():
            break
        failed = _failed_of(a for a in [*running, *_arrays()] if id(a) not in before)
        if failed:
            _tell(reason)
        # The program may still run on another device of this process.
        if any(array.is_deleted() or array.is_ready() for array in failed):
            break
    with _failing_lock:
        del _failing[threading.current_thread()]
        _core.note_failed_callbacks(len(_failing))


def _stop() -> None:
    _ending.set()
    for thread in list(_failing):
        thread.join()


def _arrays() -> list[Any]:
    """Returns all arrays that exist and span several processes."""
    return [array for array in jax.live_arrays() if not array.is_fully_addressable]


def _failed_of(arrays: Iterable[Any]) -> list[Any]:
    """Returns those of the arrays of which `_failed` is true."""
    _looking.now = True  # The errors found here must not start another look.
    try:
        return [array for array in arrays if not array.is_deleted() and _failed(array)]
    finally:
        _looking.now = False


def _failed(array: Any) -> bool:
    """Returns whether a device of this process has an error in place of its part of an array."""
    for shard in array.addressable_shards:
        try:
            if shard.data.is_ready():
                shard.data.block_until_ready()
        except RuntimeError:  # The array was deleted just now, or its value is an error.
            return not array.is_deleted()
    return False
