"""JAX collectives whose transport is a shared CXL memory pool.

Use them in place of `jax.lax`'s, inside `jax.jit` and `jax.shard_map`:

    import jax_cxl

    jax_cxl.initialize()  # maps the pool; `shm:` in /dev/shm by default
    total = jax.shard_map(lambda x: jax_cxl.psum(x, "i"), mesh=mesh,
                          in_specs=jax.P("i"), out_specs=jax.P())
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jax_cxl import errors as errors
    from jax_cxl._runtime import Stats, initialize, shutdown, stats
    from jax_cxl.errors import (
        CollectiveTimeoutError,
        CxlError,
        MismatchError,
        NotInitializedError,
        PeerLostError,
        PoolError,
    )
    from jax_cxl.ops import *

__all__ = [
    "CollectiveTimeoutError",
    "CxlError",
    "MismatchError",
    "NotInitializedError",
    "PeerLostError",
    "PoolError",
    "Stats",
    "all_gather",
    "all_to_all",
    "barrier",
    "broadcast",
    "gather",
    "initialize",
    "pargmax",
    "pargmin",
    "pbroadcast",
    "pmax",
    "pmean",
    "pmin",
    "ppermute",
    "pshuffle",
    "psum",
    "psum_scatter",
    "pswapaxes",
    "reduce",
    "scatter",
    "shutdown",
    "stats",
]

_RUNTIME = ("Stats", "initialize", "shutdown", "stats")


def __getattr__(name: str) -> Any:
    # The launcher imports this package too: it starts without JAX, and a script
    # may still set JAX's environment variables.
    if name not in __all__:
        raise AttributeError(f"module 'jax_cxl' has no attribute {name!r}")
    if name in _RUNTIME:
        module = "jax_cxl._runtime"
    elif name.endswith("Error"):
        module = "jax_cxl.errors"
    else:
        module = "jax_cxl.ops"
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
