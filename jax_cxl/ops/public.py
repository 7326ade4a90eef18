"""All operations. `start_done` splits them in halves, `transposes` defines their transposes."""

import jax_cxl.ops.transposes  # noqa: F401 - It registers rules.
from jax_cxl.ops.all_gather import all_gather as all_gather
from jax_cxl.ops.all_to_all import all_to_all as all_to_all
from jax_cxl.ops.barrier import barrier as barrier
from jax_cxl.ops.host.process_gather import process_gather as process_gather
from jax_cxl.ops.moe.combine import moe_combine as moe_combine
from jax_cxl.ops.moe.dispatch import moe_dispatch as moe_dispatch
from jax_cxl.ops.ppermute import ppermute as ppermute
from jax_cxl.ops.pshuffle import pshuffle as pshuffle
from jax_cxl.ops.psum_scatter import psum_scatter as psum_scatter
from jax_cxl.ops.pswapaxes import pswapaxes as pswapaxes
from jax_cxl.ops.ragged_all_to_all import ragged_all_to_all as ragged_all_to_all
from jax_cxl.ops.reductions.arg_extremum import pargmax as pargmax, pargmin as pargmin
from jax_cxl.ops.reductions.idempotent import pand as pand, pmax as pmax, pmin as pmin, por as por
from jax_cxl.ops.reductions.pmean import pmean as pmean
from jax_cxl.ops.reductions.psum import psum as psum
from jax_cxl.ops.rooted.broadcast import broadcast as broadcast
from jax_cxl.ops.rooted.gather import gather as gather
from jax_cxl.ops.rooted.pbroadcast import pbroadcast as pbroadcast
from jax_cxl.ops.rooted.reduce import reduce as reduce
from jax_cxl.ops.rooted.scatter import scatter as scatter
from jax_cxl.ops.scan import pexscan as pexscan, pscan as pscan
from jax_cxl.ops.send_receive import precv as precv, psend as psend
from jax_cxl.ops.start_done import *
from jax_cxl.ops.take_rows import take_rows as take_rows

# Type checkers see the imports. An assignment of a list that they cannot compute would hide them.
globals()["__all__"] = sorted(name for name, value in globals().items() if callable(value))
