"""jax_cxl.pargmax and jax_cxl.pargmin."""

from collections.abc import Hashable
from typing import Any

import jax.numpy as jnp
from jax import lax

from jax_cxl._lowering.primitives.documentation import documented
from jax_cxl.ops.reductions.idempotent import pmax, pmin

_TEXT = """\
Returns the index of the rank whose x is the {what}, the lowest index if several are equal.

Args:
  x: array of any real dtype.
  axis_name: one mesh axis.

Returns:
  An int32 array of x's shape. Under check_vma it does not vary over the axis. An
  element that is NaN on any rank gives 2**31 - 1.

Raises:
  NameError: the axis is not bound, as outside `jax.shard_map`.
  TypeError: several axes, or a dtype that is complex or not supported, such as
    float6_e2m3fn.

Example:
  >>> mesh = jax_cxl.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
  >>> where = jax.shard_map(lambda x: jax_cxl.{name}(x, "i"),
  ...                       mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P())
  >>> jax.jit(where)(jnp.array([0, 7, 1, 6, 2, 5, 3, 4]))
  {result}
"""


@documented(_TEXT, what="largest", result="Array([3, 0], dtype=int32)")
def pargmax(x: Any, axis_name: Hashable) -> Any:
    return _first_rank_with("pargmax", pmax, x, axis_name)


@documented(_TEXT, what="smallest", result="Array([0, 3], dtype=int32)")
def pargmin(x: Any, axis_name: Hashable) -> Any:
    return _first_rank_with("pargmin", pmin, x, axis_name)


def _first_rank_with(name, extremum, x, axis_name):
    if isinstance(axis_name, (tuple, list)):
        raise TypeError(f"jax_cxl.{name} works over a single axis, got {axis_name}. Pass one name.")
    best = extremum(x, axis_name)
    index = lax.axis_index(axis_name)
    nowhere = jnp.iinfo(index.dtype).max
    return pmin(jnp.where(x == best, index, nowhere), axis_name)
