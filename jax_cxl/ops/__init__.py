"""The collectives, one a file."""

from jax_cxl.ops.all_gather import all_gather
from jax_cxl.ops.barrier import barrier
from jax_cxl.ops.psum import psum
from jax_cxl.ops.psum_scatter import psum_scatter

__all__ = ["all_gather", "barrier", "psum", "psum_scatter"]
