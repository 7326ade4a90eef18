"""The URI that names a pool: what `JAX_CXL_POOL` and `jax_cxl.initialize` take.

    shm:NAME?size=1GiB&devices=6&coherence=flush     a file in /dev/shm
    file:/path,/path2?size=1GiB&offset=4KiB          files, one or more
    dax:/dev/dax0.0,/dev/dax1.0?offset=2MiB          CXL memory, one or more devices

`size` and `offset` apply to each path. `devices` splits each path into that many parts, as if each
were a device of its own. `coherence` names how stores reach the other hosts: `coherent` (the
default of shm and file), `uncached`, or `flush` (that of dax). A job whose processes run under
several kernels has to name the coherence, even if it is `coherent`. `gpu_writes=memory`, with
`flush`, means that a GPU's writes do not stay in a cache of its host (DDIO is off, or the writes do
not allocate). The host then need not write them back. `keep=on-failure`, for shm, keeps the pool of
a failed job for `python -m jax_cxl status`. cc/pool/media/uri.cc reads the URI.
"""

import dataclasses
from typing import Any

from jax_cxl import _core


@dataclasses.dataclass(frozen=True, kw_only=True)
class PoolSpec:
    """Where a pool lies, and how it is used.

    Attributes:
      kind: the part of the URI before the colon.
      paths: one path for each pool device. For shm, one name, or none: then the runtime makes a
        name.
      bytes: size of each path. 0 means all of a dax device, all of an existing file, and
        `automatic_bytes` for a new file or a pool in /dev/shm.
      devices_per_path: how many equal parts each path is split into.
      offset: where the pool starts in each path, in bytes.
      coherence: "coherent", "uncached" or "flush".
      gpu_writes_memory: whether writes of GPUs reach the memory without a write-back.
      keep: whether the pool stays in /dev/shm when the job fails.
      coherence_given: whether the URI names the coherence.
      in_dev_shm: whether a path is the name of a file in /dev/shm, which a job makes and removes.
        Other paths are absolute.
      is_device: whether a path is a device, which exists and has a size.
      uri: the URI as it was given, for messages. Pools with different URIs may be equal.
    """

    kind: str = "shm"
    paths: tuple[str, ...] = ()
    bytes: int = 0
    devices_per_path: int = 1
    offset: int = 0
    coherence: str = "coherent"
    gpu_writes_memory: bool = False
    keep: bool = False
    coherence_given: bool = False
    in_dev_shm: bool = True
    is_device: bool = False
    uri: str = dataclasses.field(default="shm:", compare=False)

    def sized(self, world_size: int, rank_bytes: int = _core.AUTOMATIC_RANK_BYTES) -> "PoolSpec":
        """Returns the spec for this number of ranks: a pool in /dev/shm gets its automatic size."""
        if not self.in_dev_shm or self.bytes:
            return self
        size = automatic_bytes(world_size, self.devices_per_path, rank_bytes)
        return dataclasses.replace(self, bytes=size)

    def for_core(self) -> dict[str, Any]:
        """Returns the fields that `PoolSpec` of cc/pool/pool.h has."""
        names = ("kind", "paths", "bytes", "devices_per_path", "offset", "coherence")
        return {name: getattr(self, name) for name in names}


def automatic_bytes(
    world_size: int, devices: int = 1, rank_bytes: int = _core.AUTOMATIC_RANK_BYTES
) -> int:
    """Returns the size of a pool of one path, if the URI gives no size.

    The pool has `rank_bytes` for each rank, and the control pages with the flight recorders.
    """
    return _core.automatic_path_bytes(
        world_size, num_paths=1, devices_per_path=devices, rank_bytes=rank_bytes
    )


def parse(uri: str | None) -> PoolSpec:
    """Reads a pool URI, as in the module's docstring. None or "" means a pool in /dev/shm."""
    uri = uri or "shm:"
    return PoolSpec(**_core.parse_pool_uri(uri), uri=uri)
