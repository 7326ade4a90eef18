"""Divides the parameters among the CPU devices of a host, or among all, in one call or in levels.

--shard=host     Each host has all parameters, and each of its devices has a part. The gather stays
                 inside the host. The gradients of the hosts are added through the pool.
--shard=all      Every device has a part, and gathers all others through the pool.
--shard=levels   The same parts, but a host gets each part of another host once, and its devices
                 pass it on to each other.
"""

from types import ModuleType
from typing import Any

import jax

Groups = list[list[int]] | None


class Sharding:
    """The collectives of jax_cxl that FSDP needs, for one way to divide the parameters.

    Attributes:
      copies: how many devices have the same part.
    """

    def __init__(self, jax_cxl: ModuleType, shard: str):
        """Groups the devices by host. The devices of a host are those of one process.

        Args:
          jax_cxl: the module.
          shard: "host", "all" or "levels".
        """
        self._cxl = jax_cxl
        self._levels = shard != "all"
        self.copies = jax.process_count() if shard == "host" else 1
        hosts, devices = jax.process_count(), jax.local_device_count()
        ranks = [[h * devices + d for d in range(devices)] for h in range(hosts)]
        self._inside: Groups = ranks if shard == "host" else None
        self._across: Groups = [list(column) for column in zip(*ranks, strict=True)]

    def all_gather(self, x: jax.Array, axis_name: str, *, tiled: bool) -> jax.Array:
        """Gathers the parts of all parameters."""
        return self._cxl.all_gather(
            x, axis_name, tiled=tiled, axis_index_groups=self._inside, levels=self._levels
        )

    def psum(self, x: jax.Array, axis_name: str) -> jax.Array:
        """Adds up over all devices."""
        return self._cxl.psum(x, axis_name, levels=self._levels)

    def sum_copies(self, gradients: Any, axis_name: str) -> Any:
        """Adds up the gradients of the devices that have the same part."""
        if self.copies == 1:
            return gradients
        return self._cxl.psum(gradients, axis_name, axis_index_groups=self._across)

    def stats(self) -> Any:
        """Returns the counters of what went through the pool."""
        return self._cxl.stats()
