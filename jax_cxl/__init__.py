"""JAX collectives whose transport is a shared CXL memory pool.

Use them in place of the collectives of `jax.lax`, inside `jax.jit` and `jax.shard_map`:

    import jax_cxl

    jax_cxl.initialize()  # maps the pool; `shm:` in /dev/shm by default
    total = jax.shard_map(lambda x: jax_cxl.psum(x, "i"), mesh=mesh,
                          in_specs=jax.P("i"), out_specs=jax.P())

`from jax_cxl import lax` is `jax.lax` with these collectives in place of its own. Under
`with jax_cxl.replace_collectives():` the collectives of code that does not know jax_cxl also go
through the pool.
"""

import importlib
import importlib.metadata
import os
from typing import TYPE_CHECKING, Any

from jax_cxl import _native
from jax_cxl._job.launched import detect, entry_point

# A checkout may have no native modules: use those of an installed jax_cxl.
__path__ += _native.elsewhere()

# On GPUs streams wait for each other, so two streams must not share a hardware queue. By default a
# process gets 8 queues. CUDA reads these variables when it starts, perhaps before jax_cxl starts.
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
os.environ.setdefault("CUDA_DEVICE_MAX_COPY_CONNECTIONS", "32")

if "OMPI_COMM_WORLD_SIZE" in os.environ or "PMI_SIZE" in os.environ:
    detect.install_for_mpi()

entry_point.warn_if_absent()

if TYPE_CHECKING:
    __version__: str
    from jax_cxl import errors as errors
    from jax_cxl import lax as lax
    from jax_cxl._commands.launch.run import run
    from jax_cxl._job.lifecycle import OperationStats, Stats, initialize, shutdown, stats
    from jax_cxl._job.mesh import make_mesh
    from jax_cxl._job.regroup import regroup
    from jax_cxl._lowering.start_done.future import Future
    from jax_cxl._snapshots.snapshots import Snapshots
    from jax_cxl._takeover.explain import explain
    from jax_cxl._takeover.replace import replace_collectives
    from jax_cxl.errors import (
        CollectiveTimeoutError,
        CxlError,
        InvalidCollectiveError,
        MismatchError,
        NotInitializedError,
        PeerLostError,
        PoolError,
        SnapshotError,
    )
    from jax_cxl.ops import *
    from jax_cxl.ops.moe.handle import MoeHandle
    from jax_cxl.ops.moe.placement import expert_placement

__all__ = [
    "CollectiveTimeoutError",
    "CxlError",
    "Future",
    "InvalidCollectiveError",
    "MismatchError",
    "MoeHandle",
    "NotInitializedError",
    "OperationStats",
    "PeerLostError",
    "PoolError",
    "SnapshotError",
    "Snapshots",
    "Stats",
    "all_gather",
    "all_gather_done",
    "all_gather_start",
    "all_to_all",
    "all_to_all_done",
    "all_to_all_start",
    "barrier",
    "broadcast",
    "broadcast_done",
    "broadcast_start",
    "expert_placement",
    "explain",
    "gather",
    "gather_done",
    "gather_start",
    "initialize",
    "lax",
    "make_mesh",
    "moe_combine",
    "moe_combine_done",
    "moe_combine_start",
    "moe_dispatch",
    "moe_dispatch_done",
    "moe_dispatch_start",
    "pand",
    "pand_done",
    "pand_start",
    "pargmax",
    "pargmin",
    "pbroadcast",
    "pbroadcast_done",
    "pbroadcast_start",
    "pexscan",
    "pexscan_done",
    "pexscan_start",
    "pmax",
    "pmax_done",
    "pmax_start",
    "pmean",
    "pmean_done",
    "pmean_start",
    "pmin",
    "pmin_done",
    "pmin_start",
    "por",
    "por_done",
    "por_start",
    "ppermute",
    "ppermute_done",
    "ppermute_start",
    "precv",
    "process_gather",
    "pscan",
    "pscan_done",
    "pscan_start",
    "psend",
    "pshuffle",
    "pshuffle_done",
    "pshuffle_start",
    "psum",
    "psum_done",
    "psum_scatter",
    "psum_scatter_done",
    "psum_scatter_start",
    "psum_start",
    "pswapaxes",
    "pswapaxes_done",
    "pswapaxes_start",
    "ragged_all_to_all",
    "ragged_all_to_all_done",
    "ragged_all_to_all_start",
    "reduce",
    "reduce_done",
    "reduce_start",
    "regroup",
    "replace_collectives",
    "run",
    "scatter",
    "scatter_done",
    "scatter_start",
    "shutdown",
    "stats",
    "take_rows",
    "take_rows_done",
    "take_rows_start",
]

_MODULES = {
    "Future": "jax_cxl._lowering.start_done.future",
    "MoeHandle": "jax_cxl.ops.moe.handle",
    "OperationStats": "jax_cxl._job.lifecycle",
    "Snapshots": "jax_cxl._snapshots.snapshots",
    "Stats": "jax_cxl._job.lifecycle",
    "expert_placement": "jax_cxl.ops.moe.placement",
    "explain": "jax_cxl._takeover.explain",
    "initialize": "jax_cxl._job.lifecycle",
    "make_mesh": "jax_cxl._job.mesh",
    "regroup": "jax_cxl._job.regroup",
    "replace_collectives": "jax_cxl._takeover.replace",
    "run": "jax_cxl._commands.launch.run",
    "shutdown": "jax_cxl._job.lifecycle",
    "stats": "jax_cxl._job.lifecycle",
}


def __getattr__(name: str) -> Any:
    # The launcher imports this package too: it starts without JAX, and a script
    # may still set JAX's environment variables.
    if name in _native.MODULES and (problem := _native.problem(name)):
        raise ImportError(problem)
    if name == "__version__":
        return importlib.metadata.version("jax_cxl")
    if name not in __all__:
        raise AttributeError(f"module 'jax_cxl' has no attribute {name!r}")
    if name == "lax":
        return importlib.import_module("jax_cxl.lax")
    module = "jax_cxl.errors" if name.endswith("Error") else _MODULES.get(name, "jax_cxl.ops")
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
