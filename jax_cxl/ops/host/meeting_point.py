"""Waits for other processes, outside of compiled programs, and names those that are late."""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax

from jax_cxl import _core, errors
from jax_cxl._job import configuration, lifecycle

# The first and the longest pause between two checks, in seconds.
_PAUSES = (0.001, 0.02)


def ranks_of_processes(running: lifecycle.Runtime) -> dict[int, list[int]]:
    """Returns the ranks of each process that takes part in the job."""
    ranks: dict[int, list[int]] = {}
    for device in jax.devices():
        if device.id in running.rank_of_device:
            ranks.setdefault(device.process_index, []).append(running.rank_of_device[device.id])
    return ranks


def wait(
    what: str,
    late: Callable[[], Mapping[int, Mapping[str, Any]]],
    ranks: Mapping[int, list[int]],
    timeout: float | None,
) -> None:
    """Waits until no process is late.

    Args:
      what: what the processes do, for messages: "barrier 'epoch'".
      late: returns the processes that have not arrived yet, each with what is known of it: "pid",
        "host", and "last" (the last place that the process reached).
      ranks: the ranks of each process.
      timeout: for how many seconds to wait, None for `JAX_CXL_TIMEOUT`.

    Raises:
      CollectiveTimeoutError: a process is late by more than `timeout` seconds.
      PeerLostError: a process that is late has ended.
      ValueError: the timeout is not greater than 0.
    """
    config = configuration.from_environment()
    limit = config.timeout if timeout is None else timeout
    if not limit > 0:  # A comparison with nan is false.
        raise ValueError(f"{what}: the timeout must be greater than 0 seconds, got {limit}")
    start, pause, warned = time.monotonic(), _PAUSES[0], False
    while missing := late():
        waited = time.monotonic() - start
        first = min(missing)
        _check_lost(what, missing, ranks)
        if waited > limit:
            error = errors.CollectiveTimeoutError(
                f"{what}: {_names(missing, ranks)} did not arrive within {limit:g} s. python -m"
                " jax_cxl status shows what ranks do. Pass a longer timeout to wait longer"
            )
            error.rank, error.call, error.waited_s = ranks[first][0], what, waited
            error.pid, error.host = missing[first].get("pid"), missing[first].get("host")
            raise error
        if waited > config.warn_after and not warned:
            warned = True
            logging.getLogger("jax_cxl").warning(
                "jax_cxl: warning: %s has waited %.0f s for %s. python -m jax_cxl status shows"
                " which ranks wait for which",
                *(what, waited, _names(missing, ranks)),
            )
        time.sleep(pause)
        pause = min(2 * pause, _PAUSES[1])


def _check_lost(
    what: str, late: Mapping[int, Mapping[str, Any]], ranks: Mapping[int, list[int]]
) -> None:
    for process in sorted(late):
        rank = ranks[process][0]
        if _core.rank_lost(rank) or _core.rank_left(rank):
            error = errors.PeerLostError(f"{what}: rank {rank} is gone: its process has ended")
            error.rank, error.call = rank, what
            raise error


def _names(late: Mapping[int, Mapping[str, Any]], ranks: Mapping[int, list[int]]) -> str:
    texts = []
    for process, who in sorted(late.items()):
        numbers = ", ".join(map(str, ranks[process]))
        text = f"rank {numbers}" if len(ranks[process]) == 1 else f"ranks {numbers}"
        if "pid" in who:
            text += f" (pid {who['pid']} on host {who['host']}, last at {who['last']})"
        texts.append(text)
    return "; ".join(texts)
