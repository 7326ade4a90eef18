"""jax_cxl.broadcast."""

from collections.abc import Hashable, Sequence
from typing import Any

import jax
from jax import lax

from jax_cxl import _compat
from jax_cxl._lowering.contract import Op
from jax_cxl._lowering.levels import choose
from jax_cxl._lowering.primitives import arguments, batching_rules, lowering, named_axis


def broadcast(
    x: Any,
    axis_name: Hashable | Sequence[Hashable],
    *,
    root: int = 0,
    levels: bool | None = None,
) -> Any:
    """Sends the x of the root to all ranks along a named axis.

    Differentiates to `reduce`.

    Args:
      x: array, or pytree of arrays, of any dtype. Only the values of the root count.
      axis_name: mesh axis, or several in the order in which they count ranks.
      root: index of the root along the axis.
      levels: True combines the data of each process before they go through the pool, False
        does not. None chooses the faster way for the size (docs/levels.md).

    Returns:
      Arrays of x's shape and dtype.

    Raises:
      NameError: the axis is not bound, as outside `jax.shard_map`.
      NotImplementedError: the root is a traced value.
      TypeError: a dtype is not supported, such as float6_e2m3fn.
      ValueError: the root is out of bounds, or `levels=True` and the processes do not hold the same
        number of ranks of the axis, at least two.

    Example:
      >>> mesh = jax_cxl.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
      >>> send = jax.shard_map(lambda x: jax_cxl.broadcast(x, "i", root=2),
      ...                      mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P("i"))
      >>> jax.jit(send)(jnp.arange(4))
      Array([2, 2, 2, 2], dtype=int32)
    """
    levels = arguments.levels("broadcast", levels)
    axes = named_axis.axes_of("broadcast", axis_name)
    root = named_axis.root_of("broadcast", "root", root, axes)
    return jax.tree.map(
        lambda leaf: broadcast_p.bind(
            named_axis.vary(leaf, axes), axes=axes, root=root, levels=levels
        ),
        x,
    )


broadcast_p = _compat.tracing.Primitive("broadcast")


def _abstract_eval(x, *, axes, root, levels):
    return named_axis.abstract_result("broadcast", x, axes)


def _lower(ctx, x, *, axes, root, levels):
    return choose.collective(
        ctx, x, name="broadcast", op=Op.BROADCAST, axes=axes, root=root, levels=levels
    )


def _batch_other_axis(x, d, **params):
    return broadcast_p.bind(x, **params), d


def _batch_own_axis(x, d, axis_size, *, root, **params):
    return (x if d is None else lax.index_in_dim(x, root, d, keepdims=False)), None


broadcast_p.def_effectful_abstract_eval(_abstract_eval)
lowering.register(broadcast_p, _lower)
batching_rules.register(broadcast_p, _batch_other_axis, _batch_own_axis)
