"""Warns of a rank that is persistently late, while the job runs.

The process of the job's first rank looks at the flight recorders of all ranks once a minute, as
`python -m jax_cxl status` does (lateness.py has the rule). It warns of a rank that was late in two
consecutive minutes. It warns of each rank once.
"""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Sequence

from jax_cxl import _core, errors

# Seconds from one look to the next one.
INTERVAL = 60.0
_CALLS = 4096  # A recorder holds no more calls.

_stopped = threading.Event()
_thread: threading.Thread | None = None


def start(opened_file: tuple[int, int], members: Sequence[int]) -> None:
    """Starts the thread that watches these ranks. `stop` ends it.

    Args:
      opened_file: the pool, as `Pool.opened_file` returns it.
      members: the ranks.
    """
    global _stopped, _thread
    _stopped = threading.Event()
    fd, offset = opened_file
    _thread = threading.Thread(
        # The thread gets a descriptor of its own, because the pool closes its descriptor when the
        # job shuts down.
        target=_look,
        args=(_stopped, os.dup(fd), offset, members),
        name="jax_cxl late ranks",
        daemon=True,
    )
    _thread.start()


def stop() -> None:
    """Ends the thread that `start` has started, if there is one."""
    _stopped.set()
    if _thread is not None:
        _thread.join()


def _look(stopped: threading.Event, fd: int, offset: int, members: Sequence[int]) -> None:
    since = time.time()
    before: set[int] = set()
    warned: set[int] = set()
    while not stopped.wait(INTERVAL):
        # Only now: a job that lasts less than a minute does not need it.
        from jax_cxl._job import lateness

        with contextlib.suppress(errors.CxlError):
            job_record = _core.read_job_record(fd, offset, "the pool")
            records = [job_record.rank(rank, _CALLS) for rank in members]
            ranks = lateness.of_ranks(records, since)
            since = time.time()
            late = {each.rank: each for each in ranks if each.persistent}
            for rank in (late.keys() & before) - warned:
                logging.getLogger("jax_cxl").warning("persistently late: %s", late[rank].sentence())
                warned.add(rank)
            before = set(late)
    os.close(fd)
