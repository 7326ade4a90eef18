"""Collectives with a root: jax_cxl.broadcast, pbroadcast, reduce, gather and scatter."""

from typing import Any

import jax
import numpy as np
from jax import lax
from jax.interpreters import ad

from jax_cxl._lowering.contract import Op
from jax_cxl._lowering.levels import primitive
from jax_cxl._lowering.primitives import arguments, dimensions, dtypes, named_axis
from jax_cxl._lowering.primitives.documentation import documented
from jax_cxl._lowering.primitives.named_axis import AxisName


@documented()
def broadcast(x: Any, axis_name: AxisName, *, root: int = 0, levels: bool | None = None) -> Any:
    """Sends the x of the root to all ranks along a named axis.

    Differentiates to `reduce`.

    Args:
      x: array, or pytree of arrays, of any dtype. Only the values of the root count.

    Returns:
      Arrays of x's shape and dtype.

    Example:
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


@documented()
def pbroadcast(x: Any, axis_name: AxisName, source: int) -> Any:
    """Sends the x of rank `source` to all ranks along a named axis.

    Drop-in for `jax.lax.pbroadcast` that works on every platform. It is `broadcast` with the name
    and the arguments of `jax.lax.pbroadcast`.

    Args:
      source: index of the sending rank along the axis.

    Returns:
      Arrays of x's shape and dtype.

    Raises:
      NotImplementedError: the source is a traced value.
      ValueError: the source is out of bounds.

    Example:
      >>> send = jax.shard_map(lambda x: jax_cxl.pbroadcast(x, "i", 2),
      ...                      mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P("i"))
      >>> jax.jit(send)(jnp.arange(4))
      Array([2, 2, 2, 2], dtype=int32)
    """
    axes = named_axis.axes_of("pbroadcast", axis_name)
    root = named_axis.root_of("pbroadcast", "source", source, axes)
    return broadcast(x, axes, root=root)


@documented()
def reduce(x: Any, axis_name: AxisName, *, root: int = 0) -> Any:
    """Sums x over all ranks along a named axis, and gives the root the sum.

    Differentiates to `broadcast`. The sum adds the ranks' values in rank order;
    float16, bfloat16 and float8 accumulate in float32 and round once.

    Args:
      x: array, or pytree of arrays, of any dtype; bool counts as int32.

    Returns:
      Arrays of x's shape and dtype (int32 for bool): the sum on the root, zeros
      elsewhere.

    Example:
      >>> total = jax.shard_map(lambda x: jax_cxl.reduce(x, "i", root=2),
      ...                       mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P("i"))
      >>> jax.jit(total)(jnp.arange(4))
      Array([0, 0, 6, 0], dtype=int32)
    """
    axes = named_axis.axes_of("reduce", axis_name)
    root = named_axis.root_of("reduce", "root", root, axes)

    def total(leaf):
        leaf = named_axis.vary(dtypes.count_bool(leaf), axes)
        return named_axis.only_at(reduce_p.bind(leaf, axes=axes, root=root), axes, root)

    return jax.tree.map(total, x)


@documented()
def gather(
    x: Any, axis_name: AxisName, *, root: int = 0, axis: int = 0, tiled: bool = False
) -> Any:
    """Gathers the values of x of all ranks along a named axis on the root.

    Differentiates to `scatter`.

    Args:
      axis: dimension of the result along which the values lie.
      tiled: if False, the result has a new dimension `axis` with the size of the named axis. If
        True, the values are concatenated along the existing dimension `axis`.

    Returns:
      Arrays of x's dtype, with the shape that `all_gather` gives: the gathered values on the
      root, zeros on the other ranks.

    Raises:
      ValueError: `axis` is out of bounds.

    Example:
      >>> collect = jax.shard_map(lambda x: jax_cxl.gather(x, "i", root=1, tiled=True),
      ...                         mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P("i"))
      >>> jax.jit(collect)(jnp.arange(1, 5)).reshape(4, 4)
      Array([[0, 0, 0, 0],
             [1, 2, 3, 4],
             [0, 0, 0, 0],
             [0, 0, 0, 0]], dtype=int32)
    """
    tiled = arguments.boolean("gather", "tiled", tiled)
    axes = named_axis.axes_of("gather", axis_name)
    root = named_axis.root_of("gather", "root", root, axes)
    size = lax.axis_size(axes)

    def collect(leaf):
        dim = dimensions.check("gather", "axis", axis, np.ndim(leaf) + (not tiled))
        leaf = named_axis.vary(leaf, axes)
        out = gather_p.bind(leaf, axes=axes, root=root, size=size, result_blocks=dim)
        out = named_axis.only_at(out, axes, root)
        return dimensions.merge(out, dim) if tiled else out

    return jax.tree.map(collect, x)


@documented()
def scatter(
    x: Any, axis_name: AxisName, *, root: int = 0, axis: int = 0, tiled: bool = False
) -> Any:
    """Sends each rank along a named axis its part of the root's x.

    Differentiates to `gather`.

    Args:
      x: array, or pytree of arrays, of any dtype, with the same shape on all ranks. Only the
        values of the root count.
      axis: dimension of x that is divided among the ranks.
      tiled: if False, the dimension must have the size of the named axis, and is removed. If
        True, its size must be a multiple of that size, and is divided by it.

    Returns:
      Arrays of x's dtype, with the shape that `psum_scatter` gives.

    Raises:
      ValueError: the dimension does not fit the axis's size.

    Example:
      >>> deal = jax.shard_map(lambda x: jax_cxl.scatter(x, "i", root=1, tiled=True),
      ...                      mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P("i"))
      >>> jax.jit(deal)(jnp.arange(16))
      Array([4, 5, 6, 7], dtype=int32)
    """
    tiled = arguments.boolean("scatter", "tiled", tiled)
    axes = named_axis.axes_of("scatter", axis_name)
    root = named_axis.root_of("scatter", "root", root, axes)
    size = lax.axis_size(axes)

    def deal(leaf):
        dim = dimensions.check_divided("scatter", "axis", axis, leaf, size, tiled=tiled)
        leaf = named_axis.vary(leaf, axes)
        leaf = dimensions.split(leaf, dim, size) if tiled else leaf
        return scatter_p.bind(leaf, axes=axes, root=root, size=size, operand_blocks=dim)

    return jax.tree.map(deal, x)


broadcast_p = primitive.make("broadcast", Op.BROADCAST)
scatter_p = primitive.make("scatter", Op.SCATTER, primitive_name="scatter_from_root")
# The results of these two primitives are undefined on all ranks except the root.
reduce_p = primitive.make("reduce", Op.REDUCE, primitive_name="reduce_to_root")
gather_p = primitive.make("gather", Op.GATHER, primitive_name="gather_to_root")


def _transpose_broadcast(ct, x, *, axes, root, levels):
    ct = reduce_p.bind(named_axis.vary(ct, axes), axes=axes, root=root)
    return [named_axis.only_at(ct, axes, root)]


def _transpose_reduce(ct, x, *, axes, root):
    return [broadcast_p.bind(named_axis.vary(ct, axes), axes=axes, root=root, levels=None)]


def _transpose_gather(ct, x, *, axes, result_blocks, **params):
    ct = named_axis.vary(ct, axes)
    return [scatter_p.bind(ct, axes=axes, operand_blocks=result_blocks, **params)]


def _transpose_scatter(ct, x, *, axes, root, operand_blocks, **params):
    ct = named_axis.vary(ct, axes)
    ct = gather_p.bind(ct, axes=axes, root=root, result_blocks=operand_blocks, **params)
    return [named_axis.only_at(ct, axes, root)]


ad.deflinear2(broadcast_p, _transpose_broadcast)
ad.deflinear2(reduce_p, _transpose_reduce)
ad.deflinear2(gather_p, _transpose_gather)
ad.deflinear2(scatter_p, _transpose_scatter)
