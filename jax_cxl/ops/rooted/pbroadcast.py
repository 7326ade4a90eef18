"""jax_cxl.pbroadcast."""

from collections.abc import Hashable, Sequence
from typing import Any

from jax_cxl._lowering.primitives import named_axis
from jax_cxl.ops.rooted.broadcast import broadcast


def pbroadcast(x: Any, axis_name: Hashable | Sequence[Hashable], source: int) -> Any:
    """Sends the x of rank `source` to all ranks along a named axis.

    Drop-in for `jax.lax.pbroadcast` that works on every platform. It is `broadcast` with the name
    and the arguments of `jax.lax.pbroadcast`.

    Args:
      x: array, or pytree of arrays, of any dtype.
      axis_name: mesh axis, or several in the order in which they count ranks.
      source: index of the sending rank along the axis.

    Returns:
      Arrays of x's shape and dtype.

    Raises:
      NameError: the axis is not bound, as outside `jax.shard_map`.
      NotImplementedError: the source is a traced value.
      TypeError: a dtype is not supported, such as float6_e2m3fn.
      ValueError: the source is out of bounds.

    Example:
      >>> mesh = jax_cxl.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
      >>> send = jax.shard_map(lambda x: jax_cxl.pbroadcast(x, "i", 2),
      ...                      mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P("i"))
      >>> jax.jit(send)(jnp.arange(4))
      Array([2, 2, 2, 2], dtype=int32)
    """
    axes = named_axis.axes_of("pbroadcast", axis_name)
    root = named_axis.root_of("pbroadcast", "source", source, axes)
    return broadcast(x, axes, root=root)
