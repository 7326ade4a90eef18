"""jax_cxl.pmean."""

from collections.abc import Hashable, Sequence
from typing import Any

import jax

from jax_cxl._lowering.primitives import arguments, named_axis
from jax_cxl.ops.reductions.psum import psum


def pmean(
    x: Any,
    axis_name: Hashable | Sequence[Hashable],
    *,
    axis_index_groups: Sequence[Sequence[int]] | None = None,
    levels: bool | None = None,
) -> Any:
    """Takes the mean of x over all ranks along a named axis.

    Drop-in for `jax.lax.pmean`. It is `psum` divided by the size of the group.

    Args:
      x: array, or pytree of arrays, of any dtype.
      axis_name: mesh axis, or several.
      axis_index_groups: lists of axis indices, all of the same size and together a
        partition of the axis. Each group has a mean of its own. By default all ranks are one
        group.
      levels: True combines the data of each process before they go through the pool, False
        does not. None chooses the faster way for the size (docs/levels.md).

    Returns:
      Arrays of x's shape; integers become floating point.

    Raises:
      NameError: the axis is not bound, as outside `jax.shard_map`.
      TypeError: a dtype is not supported, such as float6_e2m3fn.
      ValueError: the groups are not a partition, or `levels=True` for groups that do not have the
        same number of ranks, at least two, in each process.

    Example:
      >>> mesh = jax_cxl.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
      >>> mean = jax.shard_map(lambda x: jax_cxl.pmean(x, "i"),
      ...                      mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P())
      >>> jax.jit(mean)(jnp.arange(8))
      Array([3., 4.], dtype=float32)
    """
    levels = arguments.levels("pmean", levels)
    axes = named_axis.axes_of("pmean", axis_name)
    size = named_axis.group_size(axes, named_axis.groups_of("pmean", axes, axis_index_groups))
    total = psum(x, axes, axis_index_groups=axis_index_groups, levels=levels)
    return jax.tree.map(lambda leaf: leaf / size, total)
