"""What a rank knows of its launcher, and what it tells the launcher."""

import contextlib
import os
import socket
import struct
import time

from jax_cxl._job import variables
from jax_cxl._job.launched.board import Board

# The socket on which a rank reports to the supervisor. A rank reports that it has a pool (a 0, the
# offset of the pool in its file, and the open file), and that it fails (a byte, its exit status).
# Only the rank itself has the socket, not the processes that it starts.
reports: socket.socket | None = None

# The states of all ranks. Only the rank itself has the board, not the processes that it starts.
board: Board | None = None

# The report of a pool: 0, and the offset.
POOL = struct.Struct("<BQ")

# Seconds that a rank waits for the coordination service before JAX waits.
_COORDINATOR_SECONDS = 10


def launched() -> bool:
    """Returns whether this process was started by `python -m jax_cxl.launch`.

    If so, `jax.distributed.initialize()` without arguments works in it. Processes that a rank
    starts inherit the answer, as they inherit Slurm's variables.
    """
    return variables.RANK in os.environ and variables.SIZE in os.environ


def note_connecting() -> None:
    """Tells the other ranks that this process calls `jax.distributed.initialize`."""
    if board is not None:
        board.note_connecting(int(os.environ[variables.RANK]))


def wait_for_coordinator() -> None:
    """Waits until the coordination service listens, unless this process is about to start it.

    If the first attempt of a process to connect is refused, gRPC waits for a second before the next
    attempt. This function tries every 10 ms. It raises nothing. After `_COORDINATOR_SECONDS` it
    returns, and JAX continues to wait, with JAX's own timeout and error.
    """
    address = os.environ[variables.COORDINATOR]
    if os.environ.get(variables.COORDINATOR_BIND) == address and os.environ[variables.RANK] == "0":
        return
    host, _, port = address.rpartition(":")
    deadline = time.monotonic() + _COORDINATOR_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            socket.create_connection((host, int(port)), timeout=1).close()
            return
        time.sleep(0.01)


def goes_on() -> bool:
    """Returns whether the ranks continue without a rank that has failed."""
    return launched() and variables.GO_ON in os.environ


def restarts_lost() -> bool:
    """Returns whether the launcher restarts a rank that has failed, while the others continue."""
    return goes_on() and os.environ[variables.GO_ON] == variables.RESTART


def succeeds_process_0() -> bool:
    """Returns whether this is process 0, restarted while the others continue."""
    return (
        goes_on()
        and os.environ[variables.RANK] == "0"
        and int(os.environ.get(variables.RESTARTS, "0")) > 0
    )


def announce_pool(fd: int, offset: int) -> None:
    """Hands the pool to the launcher, if there is one.

    The kernel frees a pool without a name when the last rank ends. So the launcher keeps the pool
    open too, and can print the last calls of the ranks. This function passes the open file itself,
    because this process may have ended when the launcher reads the report.

    Args:
      fd: the open file of the pool.
      offset: the offset of the pool in the file, in bytes.
    """
    if reports is not None:
        with contextlib.suppress(OSError):  # The supervisor is gone.
            socket.send_fds(reports, [POOL.pack(0, offset)], [fd])
