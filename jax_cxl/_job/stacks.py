"""Python stacks of running ranks: `python -m jax_cxl status` shows where a late rank is.

A rank opens a file in memory with the name `jax_cxl.stacks`, and lets faulthandler write the stacks
of its threads there when it gets a signal. That works even while Python runs native code. Another
process of the same user reads the file through /proc.
"""

import contextlib
import faulthandler
import functools
import os
import signal
import time
from typing import IO

# A real-time signal, because programs, launchers and JAX use the other signals, such as SIGUSR1.
_SIGNAL = signal.SIGRTMAX - 3
_NAME = "jax_cxl.stacks"
_POLL_SECONDS = 0.01
# If nothing has arrived for this long, faulthandler has written everything.
_QUIET_SECONDS = 0.05


@functools.cache
def offer() -> None:
    """Lets other processes read this process's stacks, unless the program uses the signal."""
    if signal.getsignal(_SIGNAL) is signal.SIG_DFL:
        fd = os.memfd_create(_NAME, os.MFD_CLOEXEC)
        faulthandler.register(_SIGNAL, file=fd, all_threads=True, chain=False)
        # Without a handler the signal would end this process. So `read` sends the signal only if
        # the file contains this byte, which shows that there is a handler.
        os.write(fd, b"\n")


def read(pid: int, seconds: float = 1.0) -> str:
    """Returns the Python stacks of a process of this user; "" if it does not answer in time.

    The process gets no signal unless it has called `offer`. A stopped process does not answer.
    """
    path = _file(pid)
    if path is None:
        return ""
    deadline = time.monotonic() + seconds
    try:
        with open(path, "rb") as file:
            if file.seek(0, os.SEEK_END) == 0:
                return ""
            os.kill(pid, _SIGNAL)
            return _what_comes(file, deadline).decode(errors="replace").strip()
    except OSError:  # The process has ended.
        return ""


def _what_comes(file: IO[bytes], deadline: float) -> bytes:
    text, quiet_since = b"", time.monotonic()
    while (now := time.monotonic()) < deadline:
        if more := file.read():
            text, quiet_since = text + more, now
        elif text and now - quiet_since > _QUIET_SECONDS:
            break
        time.sleep(_POLL_SECONDS)
    return text


def _file(pid: int) -> str | None:
    """Returns the path of a process's file of stacks in memory, None if it has none."""
    with contextlib.suppress(OSError):
        for file in os.scandir(f"/proc/{pid}/fd"):
            # "/memfd:NAME (deleted)"
            if os.readlink(file).startswith(f"/memfd:{_NAME} "):
                return file.path
    return None
