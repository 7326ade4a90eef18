"""The copy bound: how fast ranks copy to and from shared memory when all copy at once."""

import dataclasses
import time

import numpy as np

from jax_cxl._commands.bench import world as world_lib
from jax_cxl._commands.bench.ops import Op

# In smaller copies the time that Python needs to start them would count.
_MIN_BYTES = 1 << 20
_CHUNK_BYTES = 1 << 20  # Bytes of one copy.


@dataclasses.dataclass(frozen=True)
class Rates:
    """Bytes per second of the slowest rank."""

    write: float
    read: float


class CopyBound:
    """Copies a message of `size` bytes through windows of `world.WINDOW_BYTES`.

    The owner of a window writes it, and then the next rank reads it. So each rank reads data that
    another rank has just written, as in a collective.
    """

    def __init__(self, world: world_lib.World, size: int):
        self._world = world
        self._size = max(size, _MIN_BYTES)
        self._source = np.ones(self._size, np.uint8)
        self._target = np.ones(self._size, np.uint8)

    def measure(self) -> Rates:
        """Returns the rates for one message. All ranks call it together."""
        world = self._world
        mine, other = world.windows[world.rank], world.windows[(world.rank + 1) % world.size]
        writing = reading = 0.0
        for first in range(0, self._size, world_lib.WINDOW_BYTES):
            part = slice(first, min(first + world_lib.WINDOW_BYTES, self._size))
            world.barrier()
            writing += _copy(self._source[part], mine)
            world.barrier()
            reading += _copy(other[: part.stop - first], self._target[part])
        return Rates(
            self._size / max(world.gather(writing)), self._size / max(world.gather(reading))
        )


def bound_seconds(op: Op, ranks: int, count: int, block_bytes: int, rates: Rates) -> float:
    """Returns how many seconds the rank that moves the most bytes needs to copy its bytes.

    Args:
      op: the operation.
      ranks: number of ranks.
      count: elements of a block.
      block_bytes: bytes of a block.
      rates: how fast ranks copy.
    """
    return max(
        float(share.written) * block_bytes / rates.write
        + float(share.read) * block_bytes / rates.read
        for share in op.pool(ranks, count)
    )


def _copy(source: np.ndarray, target: np.ndarray) -> float:
    """Copies `source` to the start of `target`, and returns the seconds that this took."""
    start = time.perf_counter()
    for first in range(0, len(source), _CHUNK_BYTES):
        last = min(first + _CHUNK_BYTES, len(source))
        target[first:last] = source[first:last]
    return time.perf_counter() - start
