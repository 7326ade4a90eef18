"""jax_cxl.scatter."""

from collections.abc import Hashable, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax

from jax_cxl import _compat
from jax_cxl._lowering.contract import Op
from jax_cxl._lowering.primitives import arguments, batching_rules, dimensions, lowering, named_axis


def scatter(
    x: Any,
    axis_name: Hashable | Sequence[Hashable],
    *,
    root: int = 0,
    axis: int = 0,
    tiled: bool = False,
) -> Any:
    """Sends each rank along a named axis its part of the root's x.

    Differentiates to `gather`.

    Args:
      x: array, or pytree of arrays, of any dtype, with the same shape on all ranks. Only the
        values of the root count.
      axis_name: mesh axis, or several in the order in which they count ranks.
      root: index of the root along the axis.
      axis: dimension of x that is divided among the ranks.
      tiled: if False, the dimension must have the size of the named axis, and is removed. If
        True, its size must be a multiple of that size, and is divided by it.

    Returns:
      Arrays of x's dtype, with the shape that `psum_scatter` gives.

    Raises:
      NameError: the axis is not bound, as outside `jax.shard_map`.
      NotImplementedError: the root is a traced value.
      TypeError: a dtype is not supported, such as float6_e2m3fn.
      ValueError: the root is out of bounds, or the dimension does not fit the axis's
        size.

    Example:
      >>> mesh = jax_cxl.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
      >>> deal = jax.shard_map(lambda x: jax_cxl.scatter(x, "i", root=1, tiled=True),
      ...                      mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P("i"))
      >>> jax.jit(deal)(jnp.arange(8))
      Array([4, 5, 6, 7], dtype=int32)
    """
    tiled = arguments.boolean("scatter", "tiled", tiled)
    axes = named_axis.axes_of("scatter", axis_name)
    root = named_axis.root_of("scatter", "root", root, axes)
    size = lax.axis_size(axes)

    def deal(leaf):
        dim = dimensions.check("scatter", "axis", axis, np.ndim(leaf))
        length = np.shape(leaf)[dim]
        if length % size if tiled else length != size:
            raise ValueError(
                f"jax_cxl.scatter: the size {length} of axis={dim} must be"
                f" {'divisible by' if tiled else 'equal to'} the size {size} of {axes}."
            )
        leaf = named_axis.vary(leaf, axes)
        leaf = dimensions.split(leaf, dim, size) if tiled else leaf
        return scatter_p.bind(leaf, axes=axes, root=root, size=size, dim=dim)

    return jax.tree.map(deal, x)


# Removes dimension `dim` of size `size`.
scatter_p = _compat.tracing.Primitive("scatter_from_root")


def _abstract_eval(x, *, axes, root, size, dim):
    shape = (*x.shape[:dim], *x.shape[dim + 1 :])
    return named_axis.abstract_result("scatter", x, axes, shape=shape)


def _lower(ctx, x, *, axes, root, size, dim):
    return lowering.collective(
        ctx,
        x,
        name="scatter",
        op=Op.SCATTER,
        axes=axes,
        root=root,
        operand_blocks=dim,
    )


def _batch_other_axis(x, d, *, dim, **params):
    if d <= dim:
        return scatter_p.bind(x, dim=dim + 1, **params), d
    return scatter_p.bind(x, dim=dim, **params), d - 1


def _batch_own_axis(x, d, axis_size, *, root, dim, **params):
    return (x if d is None else lax.index_in_dim(x, root, d, keepdims=False)), dim


scatter_p.def_effectful_abstract_eval(_abstract_eval)
lowering.register(scatter_p, _lower)
batching_rules.register(scatter_p, _batch_other_axis, _batch_own_axis)
