"""Linux process control that the standard library lacks."""

import contextlib
import ctypes
import os
import signal

from jax_cxl._job import process_identity

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def die_with(parent: int, number: signal.Signals) -> None:
    """Asks the kernel to send this process a signal when its parent dies.

    The request survives exec, but not fork. `parent` is the parent's process id.
    """
    _prctl(_PR_SET_PDEATHSIG, number)
    # If the parent has died before the call above, the kernel sends no signal.
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def become_subreaper() -> None:
    """Makes orphaned descendants children of this process, so that it can end them."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def descendants(ancestor: int | None = None) -> set[int]:
    """Returns the ids of all descendants of a process, by default this one, without zombies."""
    children: dict[int, list[int]] = {}
    for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))):
        if fields := process_identity.stat_of(pid):
            children.setdefault(int(fields[1]), []).append(pid)
    found: set[int] = set()
    pending = [os.getpid() if ancestor is None else ancestor]
    while pending:
        below = children.get(pending.pop(), [])
        found.update(below)
        pending.extend(below)
    return found


def send(pids: set[int], number: signal.Signals) -> None:
    """Sends a signal to processes, some of which may have ended."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    # prctl is variadic and reads an unsigned long, but ctypes would pass a plain int.
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        what = f"prctl({option}, {value}) failed: {os.strerror(number)}"
        raise OSError(number, what)
