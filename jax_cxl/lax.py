"""`jax.lax` with the collectives of jax_cxl in place of its own.

    from jax_cxl import lax

    lax.psum(x, "i")  # jax_cxl's
    lax.scan(f, init, xs)  # JAX's

Only collectives that `jax.lax` has differ: `lax.broadcast`, `lax.reduce`, `lax.gather`,
`lax.scatter` and `lax.scan` are JAX's operations on one array, as always.
"""

from typing import Any

from jax import lax as _lax

from jax_cxl import ops
from jax_cxl.ops import (  # noqa: F401 - __all__ is computed.
    all_gather,
    all_to_all,
    pargmax,
    pargmin,
    pbroadcast,
    pmax,
    pmean,
    pmin,
    ppermute,
    precv,
    psend,
    pshuffle,
    psum,
    psum_scatter,
    pswapaxes,
    ragged_all_to_all,
)

_OURS = globals().keys() & ops.__all__
__all__ = sorted({*_OURS, *(name for name in dir(_lax) if not name.startswith("_"))})


def __getattr__(name: str) -> Any:
    try:
        return getattr(_lax, name)
    except AttributeError:
        raise AttributeError(f"module 'jax_cxl.lax' has no attribute {name!r}") from None


def __dir__() -> list[str]:
    return __all__
