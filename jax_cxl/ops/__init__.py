"""The collectives. `start_done` has them in two halves, `transposes` their mutual transposes."""

from jax_cxl.ops import transposes as transposes
from jax_cxl.ops.all_gather import all_gather
from jax_cxl.ops.all_to_all import all_to_all
from jax_cxl.ops.barrier import barrier
from jax_cxl.ops.host.process_gather import process_gather
from jax_cxl.ops.moe.combine import moe_combine
from jax_cxl.ops.moe.dispatch import moe_dispatch
from jax_cxl.ops.ppermute import ppermute
from jax_cxl.ops.pshuffle import pshuffle
from jax_cxl.ops.psum_scatter import psum_scatter
from jax_cxl.ops.pswapaxes import pswapaxes
from jax_cxl.ops.ragged_all_to_all import ragged_all_to_all
from jax_cxl.ops.reductions.arg_extremum import pargmax, pargmin
from jax_cxl.ops.reductions.idempotent import pand, pmax, pmin, por
from jax_cxl.ops.reductions.pmean import pmean
from jax_cxl.ops.reductions.psum import psum
from jax_cxl.ops.rooted.broadcast import broadcast
from jax_cxl.ops.rooted.gather import gather
from jax_cxl.ops.rooted.pbroadcast import pbroadcast
from jax_cxl.ops.rooted.reduce import reduce
from jax_cxl.ops.rooted.scatter import scatter
from jax_cxl.ops.scan import pexscan, pscan
from jax_cxl.ops.send_receive import precv, psend
from jax_cxl.ops.start_done import (
    all_gather_done,
    all_gather_start,
    all_to_all_done,
    all_to_all_start,
    broadcast_done,
    broadcast_start,
    gather_done,
    gather_start,
    moe_combine_done,
    moe_combine_start,
    moe_dispatch_done,
    moe_dispatch_start,
    pand_done,
    pand_start,
    pbroadcast_done,
    pbroadcast_start,
    pexscan_done,
    pexscan_start,
    pmax_done,
    pmax_start,
    pmean_done,
    pmean_start,
    pmin_done,
    pmin_start,
    por_done,
    por_start,
    ppermute_done,
    ppermute_start,
    pscan_done,
    pscan_start,
    pshuffle_done,
    pshuffle_start,
    psum_done,
    psum_scatter_done,
    psum_scatter_start,
    psum_start,
    pswapaxes_done,
    pswapaxes_start,
    ragged_all_to_all_done,
    ragged_all_to_all_start,
    reduce_done,
    reduce_start,
    scatter_done,
    scatter_start,
    take_rows_done,
    take_rows_start,
)
from jax_cxl.ops.take_rows import take_rows

__all__ = [
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
    "gather",
    "gather_done",
    "gather_start",
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
    "scatter",
    "scatter_done",
    "scatter_start",
    "take_rows",
    "take_rows_done",
    "take_rows_start",
]
