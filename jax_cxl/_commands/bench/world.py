"""Memory that the processes of the benchmark share, for barriers and for the copy bound."""

import mmap
import os
import time

import numpy as np

from jax_cxl import _compat

WINDOW_BYTES = 4 << 20  # Twice a rank's default ring in one group: four slots of 512 KiB.
_LINE = 128
_WAIT_MS = 300_000


class World:
    """The processes of one run, one rank each, on one machine.

    Attributes:
      rank: rank of this process.
      size: number of processes.
      windows: memory of each rank, which that rank writes and the others read.
    """

    def __init__(self, rank: int, size: int):
        self.rank = rank
        self.size = size
        control = 2 * size * _LINE
        whole = np.frombuffer(self._map(control + size * WINDOW_BYTES), np.uint8)
        words = whole[:control].reshape(2, size, _LINE)
        self._arrivals = words[0, :, :8].view(np.uint64)[:, 0]
        self._values = words[1, :, :8].view(np.float64)[:, 0]
        self.windows = whole[control:].reshape(size, WINDOW_BYTES)
        self.windows[rank].fill(1)
        self.barrier()

    def barrier(self) -> None:
        """Waits for all ranks. They leave within microseconds of each other."""
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
        """Returns the value of each rank."""
        self._values[self.rank] = value
        self.barrier()
        values = self._values.tolist()
        self.barrier()
        return values

    def _map(self, size: int) -> mmap.mmap:
        """Maps memory without a name, so that no file remains, however the run ends."""
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
