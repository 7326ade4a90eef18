"""What a rank knows of its launcher, and what it tells the launcher."""

import contextlib
import functools
import logging
import os
import socket
import struct
import time

from jax_cxl._job import variables
from jax_cxl._job.launched.board import Board

# The socket on which a rank reports to the supervisor. There are two kinds of reports. If the rank
# has a pool, it sends a 0, the offset of the pool in its file, and the open file. If it fails, it
# sends a byte, its exit status. Only the rank itself has the socket, not the processes that it
# starts.
reports: socket.socket | None = None

# The states of all ranks. Only the rank itself has the board, not the processes that it starts.
board: Board | None = None

# The report of a pool: 0, and the offset.
POOL = struct.Struct("<BQ")

# Launchers set these variables. If one says that there are several processes, and jax.distributed
# is not initialized, the processes do not know of each other.
_PROCESS_COUNTS = (variables.SIZE, "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")

# How many seconds a rank waits for the coordination service before it lets JAX wait instead.
_COORDINATOR_SECONDS = 10


def launched() -> bool:
    """Returns whether this process was started by `python -m jax_cxl.launch`.

    If so, `jax.distributed.initialize()` without arguments works in it. Processes that a rank
    starts inherit the answer, as they inherit Slurm's variables.
    """
    return variables.RANK in os.environ and variables.SIZE in os.environ


def process_count_variable() -> str:
    """Returns the variable that shows that there are several processes, "" if there is none.

    The result has the form "PMI_SIZE=2".
    """
    for name in _PROCESS_COUNTS:
        count = os.environ.get(name, "")
        if count.isdecimal() and int(count) > 1:
            return f"{name}={count}"
    return ""


@functools.cache
def warn_if_alone() -> None:
    """Warns if this is one of several processes that do not know of each other.

    Such a process runs a job of its own. Nothing fails, but every result is that of one process.
    """
    import jax  # The launcher, which imports this module, must not import JAX.

    variable = process_count_variable()
    if variable and not jax.distributed.is_initialized():
        logging.getLogger("jax_cxl").warning(
            "jax_cxl: warning: this is one of several processes (%s), but they do not know of each"
            " other: each runs a job by itself, and its collectives reach no other process. Call"
            " jax_cxl.initialize() or jax.distributed.initialize() at the beginning of the script,"
            " before anything uses a device.",
            variable,
        )


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


def announce_pool(fd: int, offset: int) -> None:
    """Hands the pool at this offset of a file to the launcher, if there is one.

    The kernel frees a pool without a name when the last rank ends. So the launcher keeps the pool
    open too, and can print the last calls of the ranks. This function passes the open file itself,
    because this process may have ended when the launcher reads the report.
    """
    if reports is not None:
        with contextlib.suppress(OSError):  # The supervisor may be gone.
            socket.send_fds(reports, [POOL.pack(0, offset)], [fd])
