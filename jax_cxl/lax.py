"""`jax.lax` with the collectives of jax_cxl in place of its own.

    from jax_cxl import lax

    lax.psum(x, "i")  # jax_cxl.psum
    lax.scan(f, init, xs)  # jax.lax.scan

Only the collectives differ from `jax.lax`. `lax.broadcast`, `lax.reduce`, `lax.gather`,
`lax.scatter` and `lax.scan` are JAX's operations on one array, as always.
"""

from typing import Any

from jax import lax as _lax

from jax_cxl.ops import public
from jax_cxl.ops.public import (
    all_gather as all_gather,
    all_to_all as all_to_all,
    pargmax as pargmax,
    pargmin as pargmin,
    pbroadcast as pbroadcast,
    pmax as pmax,
    pmean as pmean,
    pmin as pmin,
    ppermute as ppermute,
    precv as precv,
    psend as psend,
    pshuffle as pshuffle,
    psum as psum,
    psum_scatter as psum_scatter,
    pswapaxes as pswapaxes,
    ragged_all_to_all as ragged_all_to_all,
)

_OURS = globals().keys() & vars(public)["__all__"]
# Type checkers see the names above, and through __getattr__ the names of jax.lax.
__all__ = sorted({*_OURS, *(name for name in dir(_lax) if not name.startswith("_"))})


def __getattr__(name: str) -> Any:
    try:
        return getattr(_lax, name)
    except AttributeError:
        raise AttributeError(f"module 'jax_cxl.lax' has no attribute {name!r}") from None


def __dir__() -> list[str]:
    return __all__
