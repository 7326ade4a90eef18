"""Tries to take a pool as another job would, but without JAX. Prints the error that it gets."""

import sys

from jax_cxl import _core, errors
from jax_cxl._job.pool import pool_uri

spec = pool_uri.parse(sys.argv[1]).sized(1)
try:
    _core.Pool.create(spec.for_core() | {"world_size": 1})
except errors.PoolInUseError as error:
    print("REFUSED", error)
else:
    print("TAKEN")
