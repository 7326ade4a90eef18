"""The collectives, one a file."""

from jax_cxl.ops.all_gather import all_gather
from jax_cxl.ops.all_to_all import all_to_all
from jax_cxl.ops.barrier import barrier
from jax_cxl.ops.broadcast import broadcast
from jax_cxl.ops.gather import gather
from jax_cxl.ops.pargmax import pargmax
from jax_cxl.ops.pargmin import pargmin
from jax_cxl.ops.pbroadcast import pbroadcast
from jax_cxl.ops.pmax import pmax
from jax_cxl.ops.pmean import pmean
from jax_cxl.ops.pmin import pmin
from jax_cxl.ops.ppermute import ppermute
from jax_cxl.ops.pshuffle import pshuffle
from jax_cxl.ops.psum import psum
from jax_cxl.ops.psum_scatter import psum_scatter
from jax_cxl.ops.pswapaxes import pswapaxes
from jax_cxl.ops.reduce import reduce
from jax_cxl.ops.scatter import scatter

__all__ = [
    "all_gather",
    "all_to_all",
    "barrier",
    "broadcast",
    "gather",
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
]
