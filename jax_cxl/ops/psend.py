"""jax_cxl.psend."""

import dataclasses
import functools
from collections.abc import Hashable, Sequence
from typing import Any

import jax

from jax_cxl import _axis
from jax_cxl.ops.ppermute import ppermute, sources_of


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["value"], meta_fields=["axes", "sources"]
)
@dataclasses.dataclass(frozen=True)
class SendToken:
    """What `psend` returns, for `precv` of the same pairs."""

    value: Any
    axes: _axis.Axes
    sources: tuple[int, ...]


def psend(x: Any, axis_name: Hashable | Sequence[Hashable], perm: Sequence[tuple[int, int]]) -> Any:
    """Sends x from rank to rank along a named axis; `precv` returns what arrived.

    Drop-in for `jax.lax.psend`, on every platform. The two together are `ppermute`, and
    differentiate like it. All ranks run both of them: `perm` says which ones send.

    Args:
      x: array, or pytree of arrays, of any dtype.
      axis_name: mesh axis, or several in the order in which they count ranks.
      perm: pairs (source, destination) of axis indices, each index at most once on
        either side.

    Returns:
      A token for each array of x. It is a pytree, and may go through
      `jax.lax.optimization_barrier`.

    Raises:
      NameError: the axis is not bound, as outside `jax.shard_map`.
      TypeError: a dtype is not supported, such as float6_e2m3fn, or perm is no list or
        tuple.
      ValueError: an index is out of bounds, or twice on one side.

    Example:
      >>> mesh = jax.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
      >>> def body(x):
      ...   token = jax_cxl.psend(x, "i", [(0, 3)])
      ...   return jax_cxl.precv(token, jax.ShapeDtypeStruct(x.shape, x.dtype), "i", [(0, 3)])
      >>> send = jax.shard_map(body, mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P("i"))
      >>> jax.jit(send)(jnp.arange(1, 5))
      Array([0, 0, 0, 1], dtype=int32)
    """
    axes = _axis.axes_of("psend", axis_name)
    sources = sources_of("psend", axes, perm)
    return jax.tree.map(lambda leaf: SendToken(ppermute(leaf, axes, perm), axes, sources), x)
