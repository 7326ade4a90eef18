"""The processes of a benchmark, which wait for each other and exchange values."""

import struct

from jax_cxl._job import exchange

_WAIT_SECONDS = 300


class World:
    """The processes of one benchmark, one rank each. They exchange values through the pool."""

    def __init__(self, rank: int, size: int):
        self.rank = rank
        self.size = size

    def barrier(self) -> None:
        """Waits for all ranks. They leave within microseconds of each other."""
        self.gather(0)

    def gather(self, value: float) -> list[float]:
        """Exchanges a value between all ranks. Returns the values in the order of ranks."""
        told = exchange.all_gather(
            "measure", "a measurement", struct.pack("<d", value), _WAIT_SECONDS
        )
        return [struct.unpack("<d", each)[0] for each in told]
