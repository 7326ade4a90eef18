"""Prints what a process starts with, if `JAX_CXL_LOG=info`."""

import logging
import os
import socket
import sys
from typing import Any

import jax

from jax_cxl._job import configuration, tuning_table

_log = logging.getLogger("jax_cxl")


class _LastHandler(logging.StreamHandler):
    """Prints records, unless the program has given the root logger a handler that prints them.

    It looks for that handler at each record, because libraries such as absl add one when they are
    imported, perhaps after jax_cxl has started.
    """

    def filter(self, record: logging.LogRecord) -> Any:
        return not logging.getLogger().handlers and super().filter(record)


def begin() -> None:
    """Prints information from now on."""
    _log.setLevel(logging.INFO)
    if not _log.handlers:
        handler = _LastHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("jax_cxl: %(levelname)s: %(message)s"))
        _log.addHandler(handler)


def started(running: Any, config: configuration.Config) -> None:
    """Prints a line for each rank of this process."""
    spec = running.spec
    tuning = tuning_table.table(running.tuning)
    slots, size = (
        getattr(config, name) or tuning[name] or "automatic" for name in ("num_slots", "slot_bytes")
    )
    for device in jax.local_devices():
        if device.id not in running.rank_of_device:
            continue
        rank = running.rank_of_device[device.id]
        _log.info(
            "rank %d of %d: %s, process %d (pid %d on host %s); pool %s, %d MiB, %d pool devices,"
            " coherence %s; slots: %s of %s bytes; tuning table: %s; generation %d",
            *(rank, len(running.rank_of_device), device, jax.process_index(), os.getpid()),
            *(socket.gethostname(), spec.uri, running.pool_bytes >> 20),
            *(max(len(spec.paths), 1) * spec.devices_per_path, spec.coherence, slots, size),
            *(config.tuning or "built in", running.generation),
        )
