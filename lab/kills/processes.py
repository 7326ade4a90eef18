"""Forked processes that are killed at random instants."""

import os
import signal
from collections.abc import Callable


def start(run: Callable[[], None]) -> int:
    """Forks a process that calls `run`. It has all imports of this process already."""
    process = os.fork()
    if process == 0:
        try:
            run()
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", flush=True)
        finally:
            os._exit(2)
    return process


def kill(process: int) -> None:
    """Kills a process, unless it has killed itself, and reaps it.

    Raises:
      SystemExit: the process has ended in another way.
    """
    ended, status = os.waitpid(process, os.WNOHANG)
    if not ended:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
    elif not (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL):
        raise SystemExit(f"a process has ended with {status}")
