"""jax_cxl.pswapaxes."""

from collections.abc import Hashable, Sequence
from typing import Any

from jax_cxl.ops.all_to_all import all_to_all


def pswapaxes(
    x: Any,
    axis_name: Hashable | Sequence[Hashable],
    axis: int,
    *,
    axis_index_groups: Sequence[Sequence[int]] | None = None,
) -> Any:
    """Swaps a named axis with a dimension of x: element i goes to rank i.

    Drop-in for `jax.lax.pswapaxes`. It is `all_to_all(x, axis_name, axis, axis)`.

    Args:
      x: array, or pytree of arrays, of any dtype.
      axis_name: mesh axis, or several in the order in which they count ranks.
      axis: dimension of x. It must have the size of the group.
      axis_index_groups: lists of axis indices, all of the same size and together a
        partition of the axis. By default all ranks are one group.

    Returns:
      Arrays of x's shape and dtype.

    Raises:
      NameError: the axis is not bound, as outside `jax.shard_map`.
      ValueError: the dimension does not have the size of the group.

    Example:
      >>> mesh = jax_cxl.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
      >>> swap = jax.shard_map(lambda x: jax_cxl.pswapaxes(x, "i", 1),
      ...                      mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P("i"))
      >>> jax.jit(swap)(jnp.arange(16).reshape(4, 4))
      Array([[ 0,  4,  8, 12],
             [ 1,  5,  9, 13],
             [ 2,  6, 10, 14],
             [ 3,  7, 11, 15]], dtype=int32)
    """
    return all_to_all(x, axis_name, axis, axis, axis_index_groups=axis_index_groups)
