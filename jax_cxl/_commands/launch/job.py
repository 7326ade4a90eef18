"""A job of the launcher, and the environment of its ranks."""

import argparse
import pathlib
from collections.abc import Mapping

from jax_cxl._job import variables


class Job(argparse.Namespace):
    """The options of `python -m jax_cxl.launch`, whose help explains them.

    `command` is the script's path, or the module's name if `m` is set, and its arguments.
    """

    n: int
    devices_per_process: int | None
    m: bool
    no_prefix: bool
    grace: float
    restarts: int
    go_on: bool
    post_mortem: pathlib.Path | None
    replace_collectives: bool
    nccl: bool
    bind_cores: bool
    oversubscribe: bool
    command: list[str]

    def environment(
        self, base: Mapping[str, str], *, rank: int, port: int, restarts: int = 0
    ) -> dict[str, str]:
        """Returns the environment of one rank: that of the launcher, `base`, with changes."""
        environment = dict(base)
        address = f"127.0.0.1:{port}"
        environment[variables.RANK] = str(rank)
        environment[variables.SIZE] = str(self.n)
        environment[variables.RESTARTS] = str(restarts)
        environment[variables.COORDINATOR] = address
        # JAX binds all interfaces by default; the ranks of one machine need loopback only.
        environment[variables.COORDINATOR_BIND] = address
        if self.go_on:
            # The launcher, and not rank 0, hosts the coordination service. JAX always starts a
            # service in process 0, even if the processes connect to another one. Port 0 gives that
            # unused service any free port.
            environment[variables.COORDINATOR_BIND] = "127.0.0.1:0"
            environment[variables.GO_ON] = "1"
        if self.replace_collectives and base.get(variables.REPLACE_COLLECTIVES) != variables.STRICT:
            environment[variables.REPLACE_COLLECTIVES] = "1"
        # Keep the GPUs that the user chose (several ranks may share one). If RANK is set, an outer
        # launcher chose the GPUs, so do not keep them.
        if variables.LOCAL_DEVICES not in base or variables.RANK in base:
            count = self.devices_per_process or 1
            gpus = range(rank * count, (rank + 1) * count)
            environment[variables.LOCAL_DEVICES] = ",".join(map(str, gpus))
        if self.devices_per_process is not None:
            # This variable takes precedence over XLA_FLAGS, which a script may assign.
            environment[variables.CPU_DEVICES] = str(self.devices_per_process)
        # gRPC uses proxies for loopback too. Exclude loopback only if a proxy is set, because JAX
        # warns about every variable with _proxy in its name.
        if any(base.get(name) for name in ("grpc_proxy", "https_proxy", "http_proxy")):
            # gRPC reads no_proxy only if no_grpc_proxy is unset.
            name = "no_grpc_proxy" if base.get("no_grpc_proxy") else "no_proxy"
            environment[name] = ",".join(filter(None, (base.get(name), "127.0.0.1")))
        return environment
