"""Makes `jax.distributed.initialize()` work under MPI launchers that JAX itself does not detect.

JAX detects Open MPI up to version 4 by a variable that version 5 does not set. It detects no
launcher of the MPICH family. The environment has the number of processes and the number of this
process, but not the address of process 0. So the address is computed from something that all
processes of a job share: the launcher's name for the job, or a process of the launcher.
"""

import os
import struct
import zlib
from typing import Any

# Variables of Open MPI 5 (its launcher is PRRTE) and of Hydra, the launcher of MPICH and Intel MPI.
_OPEN_MPI = ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "PMIX_NAMESPACE")
_OPEN_MPI_4 = "OMPI_MCA_orte_hnp_uri"
_HYDRA = ("PMI_SIZE", "PMI_RANK", "MPI_LOCALNRANKS")

# The range from which JAX also takes ports that it computes from the name of a job.
_FIRST_PORT, _PORTS = 61440, 4096


def is_open_mpi() -> bool:
    """Returns whether `mpirun` of Open MPI 5 or newer has started this process."""
    return all(name in os.environ for name in _OPEN_MPI) and _OPEN_MPI_4 not in os.environ


def is_hydra() -> bool:
    """Returns whether `mpiexec` of MPICH or Intel MPI has started this process."""
    return all(name in os.environ for name in _HYDRA)


def clusters(base: Any) -> list[Any]:
    """Returns the cluster environments, subclasses of JAX's `ClusterEnv`, which lists them."""

    def cluster(name, present, address, *variables):
        functions = ("get_process_count", "get_process_id", "get_local_process_id")
        members = {"name": name, "is_env_present": staticmethod(present)}
        members |= {"get_coordinator_address": staticmethod(address)}
        members |= zip(functions, map(number, variables), strict=True)
        return type(name, (base,), members)

    of_open_mpi = [f"OMPI_COMM_WORLD_{each}" for each in ("SIZE", "RANK", "LOCAL_RANK")]
    return [
        cluster("open_mpi", is_open_mpi, _address_of_open_mpi, *of_open_mpi),
        cluster("hydra", is_hydra, _address_of_hydra, "PMI_SIZE", "PMI_RANK", "MPI_LOCALRANKID"),
    ]


def number(variable: str) -> Any:
    """Returns a method that reads a number from the environment."""
    return staticmethod(lambda: int(os.environ[variable]))


def _address_of_open_mpi(timeout_secs: int | None, override_coordinator_port: str | None) -> str:
    # PMIX_NAMESPACE is "prterun-HOST-PID@JOB", and mpirun runs on HOST. For Open MPI 4, JAX uses
    # this host too.
    namespace = os.environ["PMIX_NAMESPACE"]
    port = override_coordinator_port or _port(namespace)
    if os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE") == os.environ["OMPI_COMM_WORLD_SIZE"]:
        return f"127.0.0.1:{port}"
    host = namespace.partition("-")[2].rpartition("@")[0].rpartition("-")[0]
    if not host:
        raise RuntimeError(_no_address("Open MPI", f"PMIX_NAMESPACE={namespace}"))
    return f"{host}:{port}"


def _address_of_hydra(timeout_secs: int | None, override_coordinator_port: str | None) -> str:
    if os.environ["MPI_LOCALNRANKS"] != os.environ["PMI_SIZE"]:
        raise RuntimeError(_no_address("MPICH", "Hydra"))
    return f"127.0.0.1:{override_coordinator_port or _port(str(_proxy()))}"


def _port(job: str) -> str:
    """Returns the port of a job, the same in all of its processes."""
    return str(_FIRST_PORT + zlib.crc32(job.encode()) % _PORTS)


def _proxy() -> int:
    """Returns the process id of Hydra's proxy, the same in all processes of a host.

    The proxy made the socket pair through which this process talks to it. So the proxy is found
    even if it did not start this process itself, but a script in between did.
    """
    import socket

    try:
        with socket.socket(fileno=os.dup(int(os.environ["PMI_FD"]))) as proxy:
            credentials = proxy.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        pid = struct.unpack("3i", credentials)[0]
    except (KeyError, ValueError, OSError):
        pid = 0
    return pid or os.getppid()


def _no_address(launcher: str, what: str) -> str:
    return (
        f"{launcher}'s launcher does not say on which host process 0 runs ({what}): set"
        " JAX_COORDINATOR_ADDRESS=HOST:PORT for all processes, with the host of process 0 and any"
        " free port"
    )
