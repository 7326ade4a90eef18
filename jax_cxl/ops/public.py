"""All operations."""

from jax_cxl.ops.all_gather import all_gather as all_gather
from jax_cxl.ops.all_to_all import all_to_all as all_to_all, pswapaxes as pswapaxes
from jax_cxl.ops.barrier import barrier as barrier
from jax_cxl.ops.moe.combine import moe_combine as moe_combine
from jax_cxl.ops.moe.dispatch import moe_dispatch as moe_dispatch
from jax_cxl.ops.ppermute import ppermute as ppermute, pshuffle as pshuffle
from jax_cxl.ops.process_gather import process_gather as process_gather
from jax_cxl.ops.psum_scatter import psum_scatter as psum_scatter
from jax_cxl.ops.ragged_all_to_all import ragged_all_to_all as ragged_all_to_all
from jax_cxl.ops.reductions import (
    pand as pand,
    pargmax as pargmax,
    pargmin as pargmin,
    pmax as pmax,
    pmean as pmean,
    pmin as pmin,
    por as por,
    psum as psum,
)
from jax_cxl.ops.rooted import (
    broadcast as broadcast,
    gather as gather,
    pbroadcast as pbroadcast,
    reduce as reduce,
    scatter as scatter,
)
from jax_cxl.ops.scan import pexscan as pexscan, pscan as pscan
from jax_cxl.ops.send_receive import precv as precv, psend as psend
from jax_cxl.ops.start_done import start as start
from jax_cxl.ops.take_rows import take_rows as take_rows

# Type checkers see the imports. A plain assignment of this list, which they cannot compute, would
# hide the imports.
globals()["__all__"] = sorted(name for name, value in globals().items() if callable(value))
