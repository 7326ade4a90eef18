"""Memory that the benchmark's processes share, with barriers and a measurement of copies."""

import mmap
import os
import time

import numpy as np

from jax_cxl import _compat

_WINDOW_BYTES = 4 << 20  # Twice a rank's default ring in one group: four slots of 512 KiB.
# For smaller copies, the time that Python needs to start a copy would matter.
_MIN_COPIED_BYTES = 1 << 20
_CHUNK_BYTES = 1 << 20  # Bytes of one copy.
_LINE = 128
_WAIT_MS = 300_000


class World:
    """The processes of one benchmark, one rank each, on one machine.

    Attributes:
      windows: memory of each rank, which that rank writes and the others read.
    """

    def __init__(self, rank: int, size: int):
        self.rank = rank
        self.size = size
        control = 2 * size * _LINE
        whole = np.frombuffer(self._map(control + size * _WINDOW_BYTES), np.uint8)
        words = whole[:control].reshape(2, size, _LINE)
        self._arrivals = words[0, :, :8].view(np.uint64)[:, 0]
        self._values = words[1, :, :8].view(np.float64)[:, 0]
        self.windows = whole[control:].reshape(size, _WINDOW_BYTES)
        self.windows[rank].fill(1)
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


class CopyBound:
    """Measures how fast a message of `size` bytes is copied through the windows of a world.

    The owner of a window writes it, and then another rank reads it. So each rank reads data that
    another rank has just written, as in a collective.
    """

    def __init__(self, world: World, size: int):
        self._world = world
        self._size = max(size, _MIN_COPIED_BYTES)
        self._source = np.ones(self._size, np.uint8)
        self._target = np.ones(self._size, np.uint8)

    def measure(self) -> tuple[float, float]:
        """Returns the speeds of the slowest writer and of the slowest reader, in bytes per second.

        All ranks call it together.
        """
        world = self._world
        mine, other = world.windows[world.rank], world.windows[(world.rank + 1) % world.size]
        writing = reading = 0.0
        for first in range(0, self._size, _WINDOW_BYTES):
            part = slice(first, min(first + _WINDOW_BYTES, self._size))
            world.barrier()
            writing += _copy(self._source[part], mine)
            world.barrier()
            reading += _copy(other[: part.stop - first], self._target[part])
        return self._size / max(world.gather(writing)), self._size / max(world.gather(reading))


def _copy(source: np.ndarray, target: np.ndarray) -> float:
    """Copies `source` to the start of `target`, and returns the seconds that this took."""
    start = time.perf_counter()
    for first in range(0, len(source), _CHUNK_BYTES):
        last = min(first + _CHUNK_BYTES, len(source))
        target[first:last] = source[first:last]
    return time.perf_counter() - start
