"""Collectives and shared arrays for JAX through memory that all processes map.

Use the collectives in place of those of `jax.lax`, inside `jax.jit` and `jax.shard_map`:

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
from jax_cxl._job.launched import entry_point, mpi

# A checkout may have no native modules. Then Python finds those of an installed jax_cxl.
__path__ += _native.elsewhere()

# On GPUs streams wait for each other, so two streams must not share a hardware queue. By default a
# process gets 8 queues. CUDA reads these variables when it starts, perhaps before jax_cxl starts.
# So they are set here, when jax_cxl is imported.
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
os.environ.setdefault("CUDA_DEVICE_MAX_COPY_CONNECTIONS", "32")

if mpi.is_open_mpi() or mpi.is_hydra():
    from jax_cxl._job.launched import detect

    detect.install()

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
    from jax_cxl.ops.moe.handle import MoeHandle as MoeHandle
    from jax_cxl.ops.moe.placement import expert_placement as expert_placement
    from jax_cxl.ops.public import *

# The public names of each module. All other public names are `lax` and the operations in
# `ops/public.py`. The reductions are operations too. They are in this table because importing their
# module alone takes less time than importing all operations.
_NAMES = {
    "_commands.launch.run": ("run",),
    "_job.lifecycle": ("OperationStats", "Stats", "initialize", "shutdown", "stats"),
    "_job.mesh": ("make_mesh",),
    "_job.regroup": ("regroup",),
    "_lowering.start_done.future": ("Future",),
    "_store.snapshots": ("Snapshots",),
    "_store.store": ("Store",),
    "_table.columns": ("TableStats",),
    "_table.table": ("Table",),
    "_takeover.explain": ("explain",),
    "_takeover.replace": ("replace_collectives",),
    "_tier.offload": ("fetch", "offload", "prefetch"),
    "_tier.pooled": ("pooled",),
    "_tier.residuals.offloading": ("offload_residuals",),
    "errors": (
        *("CollectiveTimeoutError", "CxlError", "InvalidCollectiveError", "MismatchError"),
        *("NotInitializedError", "PeerLostError", "PoolError", "StoreError", "StoreTimeoutError"),
    ),
    "ops.moe.handle": ("MoeHandle",),
    "ops.moe.placement": ("expert_placement",),
    "ops.reductions": ("pand", "pargmax", "pargmin", "pmax", "pmean", "pmin", "por", "psum"),
}
_MODULES = {name: f"jax_cxl.{module}" for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    # A module is imported when one of its names is first used, because most modules import JAX. So
    # the launcher, which imports this package too, starts without JAX. And a script may set JAX's
    # environment variables after `import jax_cxl`.
    if name == _native.MODULE and (problem := _native.problem()):
        raise ImportError(problem)
    if name == "__version__":
        return importlib.import_module("importlib.metadata").version("jax_cxl")
    if name == "__all__":
        return sorted({*_MODULES, "lax", *importlib.import_module("jax_cxl.ops.public").__all__})
    if name == "lax":
        return importlib.import_module("jax_cxl.lax")
    if name in _MODULES:
        value = getattr(importlib.import_module(_MODULES[name]), name)
    elif not name.startswith("_") and _is_operation(name):
        value = getattr(importlib.import_module("jax_cxl.ops.public"), name)
    else:
        raise AttributeError(f"module 'jax_cxl' has no attribute {name!r}")
    globals()[name] = value
    return value


def _is_operation(name: str) -> bool:
    # In `from jax_cxl import errors`, Python looks for the name here before it imports the module
    # `jax_cxl.errors`. Such a name is a module, and not an operation.
    if importlib.util.find_spec(f"jax_cxl.{name}") is not None:
        return False
    return name in importlib.import_module("jax_cxl.ops.public").__all__


def __dir__() -> list[str]:
    names: list[str] = __getattr__("__all__")
    return names
