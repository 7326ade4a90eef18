"""The environment variables by which the launcher passes information to its ranks."""

import contextlib
import os
import socket
import struct
import time
from collections.abc import Mapping, Sequence

from jax_cxl._job.launched.board import Board
from jax_cxl._takeover import plugin

RANK = "JAX_CXL_LAUNCH_RANK"
SIZE = "JAX_CXL_LAUNCH_SIZE"
# How many times the ranks have been started again, for scripts.
RESTARTS = "JAX_CXL_LAUNCH_RESTARTS"
# The cores of a rank, separated by commas; absent or empty: all.
CORES = "JAX_CXL_LAUNCH_CORES"

# GO_ON is set if the ranks continue without a rank that has failed; _RESTART is set if the failed
# rank starts again.
GO_ON = "JAX_CXL_LAUNCH_GO_ON"
_RESTART = "restart"

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

_COORDINATOR = "JAX_COORDINATOR_ADDRESS"
_COORDINATOR_BIND = "JAX_COORDINATOR_BIND_ADDRESS"
_LOCAL_DEVICES = "JAX_LOCAL_DEVICE_IDS"
_CPU_DEVICES = "JAX_NUM_CPU_DEVICES"


def launched() -> bool:
    """Returns whether this process was started by `python -m jax_cxl.launch`.

    If so, `jax.distributed.initialize()` without arguments works in it. Processes that a rank
    starts inherit the answer, as they inherit Slurm's variables.
    """
    return RANK in os.environ and SIZE in os.environ


def note_connecting() -> None:
    """Tells the other ranks that this process calls `jax.distributed.initialize`."""
    if board is not None:
        board.note_connecting(int(os.environ[RANK]))


def wait_for_coordinator() -> None:
    """Waits until the coordination service listens, unless this process is about to start it.

    If the first attempt of a process to connect is refused, gRPC waits for a second before the next
    attempt. This function tries every 10 ms. It raises nothing. After `_COORDINATOR_SECONDS` it
    returns, and JAX waits on, with JAX's own timeout and error.
    """
    address = os.environ[_COORDINATOR]
    if os.environ.get(_COORDINATOR_BIND) == address and os.environ[RANK] == "0":
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
    return launched() and GO_ON in os.environ


def restarts_lost() -> bool:
    """Returns whether the launcher restarts a rank that has failed, while the others continue."""
    return goes_on() and os.environ[GO_ON] == _RESTART


def succeeds_process_0() -> bool:
    """Returns whether this is process 0, restarted while the others continue."""
    return goes_on() and os.environ[RANK] == "0" and int(os.environ.get(RESTARTS, "0")) > 0


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
        with contextlib.suppress(OSError):  # The supervisor has gone.
            socket.send_fds(reports, [POOL.pack(0, offset)], [fd])


def rank_environment(
    base: Mapping[str, str],
    *,
    rank: int,
    size: int,
    port: int,
    devices_per_process: int | None,
    restarts: int = 0,
    go_on: bool = False,
    restart_lost: bool = False,
    replace_collectives: bool = False,
    cores: Sequence[int] = (),
) -> dict[str, str]:
    """Returns the environment of one rank.

    Args:
      base: the launcher's environment; it is not changed.
      rank: the rank, from 0.
      size: the number of ranks.
      port: the loopback port of the coordination service.
      devices_per_process: CPU devices, and GPUs, of a rank; None leaves the number of CPU
        devices alone and gives each rank one GPU.
      restarts: how many times the ranks have been started before.
      go_on: whether the ranks continue without a rank that has failed. Then the launcher, and not
        rank 0, hosts the coordination service.
      restart_lost: whether the launcher restarts a rank that has failed.
      replace_collectives: whether XLA's collectives go through the pool.
      cores: the cores on which the rank stays; none: all.
    """
    environment = dict(base)
    address = f"127.0.0.1:{port}"
    environment[RANK] = str(rank)
    environment[SIZE] = str(size)
    environment[RESTARTS] = str(restarts)
    environment[CORES] = ",".join(map(str, cores))
    environment[_COORDINATOR] = address
    # JAX binds all interfaces by default; the ranks of one machine need loopback only.
    environment[_COORDINATOR_BIND] = address
    if go_on:
        environment[GO_ON] = _RESTART if restart_lost else "1"
        # JAX always starts a service in process 0, also if the processes connect to another one.
        environment[_COORDINATOR_BIND] = "127.0.0.1:0"
    if replace_collectives and base.get(plugin.VARIABLE) != plugin.STRICT:
        environment[plugin.VARIABLE] = "1"
    # Keep a choice of the user (several ranks may share a GPU), but not of an outer launcher.
    if _LOCAL_DEVICES not in base or RANK in base:
        count = devices_per_process or 1
        environment[_LOCAL_DEVICES] = ",".join(str(rank * count + i) for i in range(count))
    if devices_per_process is not None:
        # This variable takes precedence over XLA_FLAGS, which a script may assign.
        environment[_CPU_DEVICES] = str(devices_per_process)
    _exempt_loopback_from_proxy(environment)
    return environment


def _exempt_loopback_from_proxy(environment: dict[str, str]) -> None:
    """Excludes 127.0.0.1 from a proxy, because gRPC uses proxies for loopback too."""
    # Only if a proxy is set, because JAX warns about every variable with _proxy in its name.
    if not any(environment.get(name) for name in ("grpc_proxy", "https_proxy", "http_proxy")):
        return
    # gRPC reads no_proxy only if no_grpc_proxy is unset.
    name = "no_grpc_proxy" if environment.get("no_grpc_proxy") else "no_proxy"
    environment[name] = ",".join(filter(None, (environment.get(name), "127.0.0.1")))
