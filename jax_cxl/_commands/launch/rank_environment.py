"""The environment of a rank."""

from collections.abc import Mapping, Sequence

from jax_cxl._job import variables


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
    columns: int | None = None,
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
      cores: the cores on which the rank stays; if empty, all cores.
      columns: the columns that a terminal has for the rank's unfinished line; None if no terminal
        shows this line.
    """
    environment = dict(base)
    address = f"127.0.0.1:{port}"
    environment[variables.RANK] = str(rank)
    environment[variables.SIZE] = str(size)
    environment[variables.RESTARTS] = str(restarts)
    environment[variables.CORES] = ",".join(map(str, cores))
    environment.pop(variables.COLUMNS, None)  # An outer launcher may have set it.
    if columns is not None:
        environment[variables.COLUMNS] = str(columns)
    environment[variables.COORDINATOR] = address
    # JAX binds all interfaces by default; the ranks of one machine need loopback only.
    environment[variables.COORDINATOR_BIND] = address
    if go_on:
        environment[variables.GO_ON] = variables.RESTART if restart_lost else "1"
        # JAX always starts a service in process 0, even if the processes connect to another one.
        environment[variables.COORDINATOR_BIND] = "127.0.0.1:0"
    if replace_collectives and base.get(variables.REPLACE_COLLECTIVES) != variables.STRICT:
        environment[variables.REPLACE_COLLECTIVES] = "1"
    # Keep a choice of the user (several ranks may share a GPU), but not of an outer launcher.
    if variables.LOCAL_DEVICES not in base or variables.RANK in base:
        count = devices_per_process or 1
        environment[variables.LOCAL_DEVICES] = ",".join(str(rank * count + i) for i in range(count))
    if devices_per_process is not None:
        # This variable takes precedence over XLA_FLAGS, which a script may assign.
        environment[variables.CPU_DEVICES] = str(devices_per_process)
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
