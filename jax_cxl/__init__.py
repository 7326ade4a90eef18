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
import importlib.util
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
    from jax_cxl import errors as errors, lax as lax
    from jax_cxl._commands.launch.run import run as run
    from jax_cxl._job.lifecycle import (
        OperationStats as OperationStats,
        Stats as Stats,
        initialize as initialize,
        shutdown as shutdown,
        stats as stats,
    )
    from jax_cxl._job.mesh import make_mesh as make_mesh
    from jax_cxl._job.regroup import regroup as regroup
    from jax_cxl._lowering.start_done.future import Future as Future
    from jax_cxl._store.snapshots import Snapshots as Snapshots
    from jax_cxl._store.store import Store as Store
    from jax_cxl._table.columns import TableStats as TableStats
    from jax_cxl._table.table import Table as Table
    from jax_cxl._takeover.explain import explain as explain
    from jax_cxl._takeover.replace import replace_collectives as replace_collectives
    from jax_cxl._tier.offload import fetch as fetch, offload as offload, prefetch as prefetch
    from jax_cxl._tier.pooled import pooled as pooled
    from jax_cxl._tier.residuals.offloading import offload_residuals as offload_residuals
    from jax_cxl.errors import (
        CollectiveTimeoutError as CollectiveTimeoutError,
        CxlError as CxlError,
        InvalidCollectiveError as InvalidCollectiveError,
        MismatchError as MismatchError,
        NotInitializedError as NotInitializedError,
        PeerLostError as PeerLostError,
        PoolError as PoolError,
        StoreError as StoreError,
        StoreTimeoutError as StoreTimeoutError,
    )
    from jax_cxl.ops import *
    from jax_cxl.ops.moe.handle import MoeHandle as MoeHandle
    from jax_cxl.ops.moe.placement import expert_placement as expert_placement

_ERRORS = (
    *("CollectiveTimeoutError", "CxlError", "InvalidCollectiveError", "MismatchError"),
    *("NotInitializedError", "PeerLostError", "PoolError", "StoreError"),
    "StoreTimeoutError",
)
# The modules of the public names. All other public names are operations, or `lax`. The reductions
# are here because their modules are imported sooner than those of all operations.
_MODULES = dict.fromkeys(_ERRORS, "jax_cxl.errors") | {
    "Future": "jax_cxl._lowering.start_done.future",
    "MoeHandle": "jax_cxl.ops.moe.handle",
    "OperationStats": "jax_cxl._job.lifecycle",
    "Snapshots": "jax_cxl._store.snapshots",
    "Stats": "jax_cxl._job.lifecycle",
    "Store": "jax_cxl._store.store",
    "Table": "jax_cxl._table.table",
    "TableStats": "jax_cxl._table.columns",
    "expert_placement": "jax_cxl.ops.moe.placement",
    "explain": "jax_cxl._takeover.explain",
    "fetch": "jax_cxl._tier.offload",
    "initialize": "jax_cxl._job.lifecycle",
    "make_mesh": "jax_cxl._job.mesh",
    "offload": "jax_cxl._tier.offload",
    "offload_residuals": "jax_cxl._tier.residuals.offloading",
    "pand": "jax_cxl.ops.reductions",
    "pmax": "jax_cxl.ops.reductions",
    "pmean": "jax_cxl.ops.reductions",
    "pmin": "jax_cxl.ops.reductions",
    "pooled": "jax_cxl._tier.pooled",
    "por": "jax_cxl.ops.reductions",
    "prefetch": "jax_cxl._tier.offload",
    "psum": "jax_cxl.ops.reductions",
    "regroup": "jax_cxl._job.regroup",
    "replace_collectives": "jax_cxl._takeover.replace",
    "run": "jax_cxl._commands.launch.run",
    "shutdown": "jax_cxl._job.lifecycle",
    "stats": "jax_cxl._job.lifecycle",
}


def __getattr__(name: str) -> Any:
    # The launcher imports this package too: it starts without JAX, and a script
    # may still set JAX's environment variables.
    if name == _native.MODULE and (problem := _native.problem()):
        raise ImportError(problem)
    if name == "__version__":
        return importlib.import_module("importlib.metadata").version("jax_cxl")
    if name == "__all__":
        return sorted({*_MODULES, "lax", *importlib.import_module("jax_cxl.ops").__all__})
    if name == "lax":
        return importlib.import_module("jax_cxl.lax")
    if name in _MODULES:
        value = getattr(importlib.import_module(_MODULES[name]), name)
    elif not name.startswith("_") and _is_operation(name):
        value = getattr(importlib.import_module("jax_cxl.ops"), name)
    else:
        raise AttributeError(f"module 'jax_cxl' has no attribute {name!r}")
    globals()[name] = value
    return value


def _is_operation(name: str) -> bool:
    # Python asks for a module of the package here before it imports the module.
    if importlib.util.find_spec(f"jax_cxl.{name}") is not None:
        return False
    return name in importlib.import_module("jax_cxl.ops").__all__


def __dir__() -> list[str]:
    names: list[str] = __getattr__("__all__")
    return names
