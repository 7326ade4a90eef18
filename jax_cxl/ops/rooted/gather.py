"""jax_cxl.gather."""

from collections.abc import Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_cxl import _compat
from jax_cxl._lowering.contract import Op
from jax_cxl._lowering.primitives import arguments, batching_rules, dimensions, lowering, named_axis


def gather(
    x: Any,
    axis_name: Hashable | Sequence[Hashable],
    *,
    root: int = 0,
    axis: int = 0,
    tiled: bool = False,
) -> Any:
    """Gathers the values of x of all ranks along a named axis on the root.

    Differentiates to `scatter`.

    Args:
      x: array, or pytree of arrays, of any dtype.
      axis_name: mesh axis, or several in the order in which they count ranks.
      root: index of the root along the axis.
      axis: dimension of the result along which the values lie.
      tiled: False inserts a new dimension `axis` of the axis's size; True concatenates
        along the existing one.

    Returns:
      Arrays of x's dtype, with the shape that `all_gather` gives: the gathered values on the
      root, zeros on the other ranks.

    Raises:
      NameError: the axis is not bound, as outside `jax.shard_map`.
      NotImplementedError: the root is a traced value.
      TypeError: a dtype is not supported, such as float6_e2m3fn.
      ValueError: `root` or `axis` is out of bounds.

    Example:
      >>> mesh = jax_cxl.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
      >>> collect = jax.shard_map(lambda x: jax_cxl.gather(x, "i", root=1, tiled=True),
      ...                         mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P("i"))
      >>> jax.jit(collect)(jnp.arange(1, 3))
      Array([0, 0, 1, 2], dtype=int32)
    """
    tiled = arguments.boolean("gather", "tiled", tiled)
    axes = named_axis.axes_of("gather", axis_name)
    root = named_axis.root_of("gather", "root", root, axes)
    size = lax.axis_size(axes)

    def collect(leaf):
        dim = dimensions.check("gather", "axis", axis, np.ndim(leaf) + (not tiled))
        out = gather_p.bind(named_axis.vary(leaf, axes), axes=axes, root=root, size=size, dim=dim)
        out = named_axis.only_at(out, axes, root)
        return dimensions.merge(out, dim) if tiled else out

    return jax.tree.map(collect, x)


# Inserts dimension `dim` of size `size`. The result is undefined on all ranks except the
# root.
gather_p = _compat.tracing.Primitive("gather_to_root")


def _abstract_eval(x, *, axes, root, size, dim):
    shape = (*x.shape[:dim], size, *x.shape[dim:])
    return named_axis.abstract_result("gather", x, axes, shape=shape)


def _lower(ctx, x, *, axes, root, size, dim):
    return lowering.collective(
        ctx,
        x,
        name="gather",
        op=Op.GATHER,
        axes=axes,
        root=root,
        result_blocks=dim,
    )


def _batch_other_axis(x, d, *, dim, **params):
    if d <= dim:
        return gather_p.bind(x, dim=dim + 1, **params), d
    return gather_p.bind(x, dim=dim, **params), d + 1


def _batch_own_axis(x, d, axis_size, *, dim, **params):
    if d is None:
        x, d = lax.broadcast(x, (axis_size,)), 0
    return jnp.moveaxis(x, d, dim), None


gather_p.def_effectful_abstract_eval(_abstract_eval)
lowering.register(gather_p, _lower)
batching_rules.register(gather_p, _batch_other_axis, _batch_own_axis)
