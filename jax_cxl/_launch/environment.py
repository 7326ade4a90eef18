"""The environment variables through which the launcher talks to its ranks."""

import contextlib
import os
import socket
import struct
from collections.abc import Mapping

RANK = "JAX_CXL_LAUNCH_RANK"
SIZE = "JAX_CXL_LAUNCH_SIZE"
# How many times the ranks have been started again, for scripts that want to know.
RESTARTS = "JAX_CXL_LAUNCH_RESTARTS"

# Set where the ranks go on without one that has failed; to _RESTART where that starts again.
GO_ON = "JAX_CXL_LAUNCH_GO_ON"
_RESTART = "restart"

# On which a rank tells the supervisor that it has a pool (0, where the pool starts in its file, and
# the open file), and that it fails (one byte, its status). Set in a rank's own process only.
reports: socket.socket | None = None

# What comes with a pool: 0, and the offset.
POOL = struct.Struct("<BQ")

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


def goes_on() -> bool:
    """Returns whether the launcher lets the ranks go on without one that has failed."""
    return launched() and GO_ON in os.environ


def restarts_lost() -> bool:
    """Returns whether the launcher starts ranks that have failed again, while the others go on."""
    return goes_on() and os.environ[GO_ON] == _RESTART


def succeeds_process_0() -> bool:
    """Returns whether this is process 0, started again while the others go on."""
    return goes_on() and os.environ[RANK] == "0" and int(os.environ.get(RESTARTS, "0")) > 0


def announce_pool(fd: int, offset: int) -> None:
    """Hands the pool to the launcher, if there is one.

    A pool without a name is gone with the last rank: the launcher keeps it, too, so that it can say
    afterwards what the ranks did last. It gets the open file itself, because this process may be
    gone by the time that it hears of it.

    Args:
        fd: The file of the pool, open.
        offset: Where the pool starts in it, in bytes.
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
) -> dict[str, str]:
    """Returns the environment of one rank.

    Args:
        base: The launcher's environment; it is not changed.
        rank: The rank, from 0.
        size: The number of ranks.
        port: The loopback port of the coordination service.
        devices_per_process: CPU devices, and GPUs, of a rank; None leaves the number of CPU
            devices alone and gives each rank one GPU.
        restarts: How many times the ranks have been started before.
        go_on: Whether the ranks go on without one that has failed. The coordination service is
            then not rank 0's.
        restart_lost: Whether one that has failed starts again meanwhile.
    """
    environment = dict(base)
    address = f"127.0.0.1:{port}"
    environment[RANK] = str(rank)
    environment[SIZE] = str(size)
    environment[RESTARTS] = str(restarts)
    environment[_COORDINATOR] = address
    # JAX binds all interfaces by default; the ranks of one machine need loopback only.
    environment[_COORDINATOR_BIND] = address
    if go_on:
        environment[GO_ON] = _RESTART if restart_lost else "1"
        # JAX starts a service in process 0 whether or not it is the one that all connect to.
        environment[_COORDINATOR_BIND] = "127.0.0.1:0"
    # The user's own choice stands (several ranks may share a GPU), that of an outer launcher not.
    if _LOCAL_DEVICES not in base or RANK in base:
        count = devices_per_process or 1
        environment[_LOCAL_DEVICES] = ",".join(str(rank * count + i) for i in range(count))
    if devices_per_process is not None:
        # Unlike XLA_FLAGS this survives a script that assigns XLA_FLAGS, and it wins over it.
        environment[_CPU_DEVICES] = str(devices_per_process)
    _exempt_loopback_from_proxy(environment)
    return environment


def _exempt_loopback_from_proxy(environment: dict[str, str]) -> None:
    """Keeps gRPC, which sends even loopback through a proxy, off it for 127.0.0.1."""
    # Only where a proxy is set: JAX warns about every variable with _proxy in its name.
    if not any(environment.get(name) for name in ("grpc_proxy", "https_proxy", "http_proxy")):
        return
    # gRPC reads no_proxy only where no_grpc_proxy is unset.
    name = "no_grpc_proxy" if environment.get("no_grpc_proxy") else "no_proxy"
    environment[name] = ",".join(filter(None, (environment.get(name), "127.0.0.1")))
