"""How the processes of the job agree outside of programs: each gives bytes, and gets those of all.

The bytes go through the pool (cc/comm/exchange.h), which says in which order exchanges meet.
"""

from collections.abc import Sequence
from typing import Any

import jax

from jax_cxl import _core
from jax_cxl._job import lifecycle


def processes() -> list[int]:
    """Returns the indices of the processes that are in the job, in order."""
    return sorted({device.process_index for device in _devices()})


def ranks_of(processes: Sequence[int]) -> list[int]:
    """Returns the ranks of some processes, in order."""
    running = lifecycle.current()
    if running is None:
        return []
    return [
        running.rank_of_device[device.id]
        for device in _devices()
        if device.process_index in processes
    ]


def all_gather(topic: str, what: str, data: bytes, timeout: float | None = None) -> list[bytes]:
    """Returns the bytes of each process, in the order of `processes()`.

    Every process calls it equally often for a topic. Exchanges of different topics do not meet, and
    may be in different threads. `what` tells what the processes do, for messages, and is the same
    on all of them. With a timeout of 0 seconds the others get the bytes of this process, and this
    process raises CollectiveTimeoutError.

    Raises:
      CollectiveTimeoutError: a process is late by more than `timeout` seconds.
      MismatchError: another process does something else.
      PeerLostError: a process that is late has ended.
      CxlError: a process has given up, after an error in a collective.
    """
    return [data] if len(processes()) == 1 else _core.exchange(topic, what, data, timeout)


def _devices() -> list[Any]:
    if jax.process_count() == 1:
        return jax.devices()[:1]
    ranks = lifecycle.ensure_started().rank_of_device
    return [device for device in jax.devices() if device.id in ranks]
