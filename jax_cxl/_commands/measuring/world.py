"""Memory by which the benchmark's processes wait for each other, and exchange values."""

import mmap
import os
import time

import numpy as np

from jax_cxl import _compat

_LINE = 128
_WAIT_MS = 300_000


class World:
    """The processes of one benchmark, one rank each, on one machine."""

    def __init__(self, rank: int, size: int):
        self.rank = rank
        self.size = size
        words = np.frombuffer(self._map(2 * size * _LINE), np.uint8).reshape(2, size, _LINE)
        self._arrivals = words[0, :, :8].view(np.uint64)[:, 0]
        self._values = words[1, :, :8].view(np.float64)[:, 0]
        self.barrier()

    def barrier(self) -> None:
        """Waits for all ranks. After a short wait they leave within microseconds of each other."""
        arrival = self._arrivals[self.rank] + np.uint64(1)
        self._arrivals[self.rank] = arrival
        polls = 0
        while self._arrivals.min() < arrival:
            polls += 1
            if polls > 1000:
                time.sleep(1e-4)
            elif polls > 20:
                os.sched_yield()

    def gather(self, value: float) -> list[float]:
        """Exchanges a value between all ranks. Returns the values in the order of ranks."""
        self._values[self.rank] = value
        self.barrier()
        values = self._values.tolist()
        self.barrier()
        return values

    def _map(self, size: int) -> mmap.mmap:
        """Maps memory that all ranks share. It has no name, so no file remains after any end."""
        client = _compat.distributed.client()
        if self.rank == 0:
            fd = os.memfd_create("jax_cxl.bench")
            os.ftruncate(fd, size)
            client.key_value_set("jax_cxl_bench/memory", f"/proc/{os.getpid()}/fd/{fd}")
        else:
            place = client.blocking_key_value_get("jax_cxl_bench/memory", _WAIT_MS)
            fd = os.open(place, os.O_RDWR)
        mapped = mmap.mmap(fd, size)
        client.wait_at_barrier("jax_cxl_bench/mapped", _WAIT_MS)
        os.close(fd)
        return mapped
