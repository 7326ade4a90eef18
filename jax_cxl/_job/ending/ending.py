"""How a program ends after it has lost a process.

At exit JAX waits at a barrier until all processes of the job end. A lost process never arrives, and
JAX aborts the program after a minute or more. So the survivors leave JAX's coordination service
without that barrier. Process 0, which hosts the service, leaves last, because JAX aborts the
other processes when the service ends.

Under `python -m jax_cxl.launch` none of this is needed, because the launcher ends the ranks.
"""

import contextlib
import time
from collections.abc import Sequence
from typing import Any

import jax

from jax_cxl import _compat, _core
from jax_cxl._job import configuration
from jax_cxl._job.launched import environment as launch_environment
from jax_cxl._job.pool import pools

_POLL_SECONDS = 0.02
# Seconds that an interpreter may need, on a busy machine, to end after it has announced its end.
_END_SECONDS = 5


def finish_programs() -> None:
    """Waits for the main thread's programs, because other ranks may need their calls.

    JAX starts programs asynchronously, so Python may reach its end while they run. This function
    runs an empty program on each device and on all devices. XLA executes the programs that a thread
    starts on the same devices in order, so the earlier programs have finished when the empty
    program has.
    """
    devices = jax.local_devices()
    groups = [[device] for device in devices] + [devices] * (len(devices) > 1)
    for group in groups:
        # Ignore errors of the earlier programs: nobody asked for their results.
        with contextlib.suppress(Exception):
            _run_on(group).block_until_ready()


def _run_on(devices: Sequence[Any]) -> jax.Array:
    """Starts an empty program on these devices. Most of the time goes into compiling it."""
    mesh = jax.sharding.Mesh(devices, ("devices",))
    return jax.jit(lambda: 0, out_shardings=jax.NamedSharding(mesh, jax.P()))()


def wait_for_survivors() -> None:
    """Lets the other survivors end first, if this process hosts their coordination service.

    Call it while the runtime runs.
    """
    if launch_environment.launched() or not _compat.distributed.hosts_service():
        return
    others = set(range(jax.device_count())) - set(pools.local_ranks())
    survivors = {rank for rank in others if not _core.rank_lost(rank)}
    if survivors == others:
        return
    deadline = time.monotonic() + configuration.from_environment().heartbeat_timeout
    while not all(map(_ends, survivors)) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    deadline = time.monotonic() + _END_SECONDS
    while not all(map(_core.rank_lost, survivors)) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)


def _ends(rank: int) -> bool:
    return _core.rank_left(rank) or _core.rank_lost(rank)


def leave_jax() -> None:
    """Leaves the coordination service without waiting for the lost processes."""
    if not launch_environment.launched() and _compat.distributed.client() is not None:
        _compat.distributed.leave_without_barrier()
