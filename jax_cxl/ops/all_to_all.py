"""jax_cxl.all_to_all."""

from collections.abc import Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.interpreters import ad

from jax_cxl import _compat
from jax_cxl._lowering.contract import Op
from jax_cxl._lowering.levels import choose
from jax_cxl._lowering.primitives import arguments, batching_rules, dimensions, lowering, named_axis


def all_to_all(
    x: Any,
    axis_name: Hashable | Sequence[Hashable],
    split_axis: int,
    concat_axis: int,
    *,
    axis_index_groups: Sequence[Sequence[int]] | None = None,
    tiled: bool = False,
    levels: bool | None = None,
) -> Any:
    """Sends part i of x to rank i along a named axis, and joins the received parts.

    Drop-in for `jax.lax.all_to_all`. Its transpose is `all_to_all` with the two axes
    swapped.

    Args:
      x: array, or pytree of arrays, of any dtype.
      axis_name: mesh axis, or several in the order in which they count ranks.
      split_axis: dimension of x that is divided among the ranks.
      concat_axis: dimension of the result along which the ranks' parts lie.
      axis_index_groups: lists of axis indices, all of the same size and together a
        partition of the axis. The ranks of a group exchange parts. By default all ranks are one
        group.
      tiled: if False, `split_axis` must have the size of the group; it is removed, and
        `concat_axis` is inserted. If True, the size of `split_axis` is divided by the size of the
        group, and the size of `concat_axis` is multiplied by it.
      levels: True combines the data of each process before they go through the pool, False
        does not. None chooses the faster way for the size (docs/levels.md).

    Returns:
      Arrays of x's dtype. For x of shape (n, a, b), n ranks, split_axis=0 and
      concat_axis=1, the shape is (a, n, b) untiled and (1, n * a, b) tiled.

    Raises:
      NameError: the axis is not bound, as outside `jax.shard_map`.
      TypeError: a dtype is not supported, such as float6_e2m3fn.
      ValueError: the divided dimension does not fit the size of the group, or the groups are not a
        partition, or `levels=True` for groups that do not have the same number of ranks, at least
        two, in each process.

    Example:
      >>> mesh = jax_cxl.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
      >>> swap = jax.shard_map(lambda x: jax_cxl.all_to_all(x, "i", 1, 0, tiled=True),
      ...                      mesh=mesh, in_specs=jax.P("i"),
      ...                      out_specs=jax.P(None, "i"))
      >>> bool((jax.jit(swap)(jnp.eye(4)) == jnp.eye(4)).all())
      True
    """
    tiled = arguments.boolean("all_to_all", "tiled", tiled)
    levels = arguments.levels("all_to_all", levels)
    axes = named_axis.axes_of("all_to_all", axis_name)
    if not axes:
        return x
    groups = named_axis.groups_of("all_to_all", axes, axis_index_groups)
    size = named_axis.group_size(axes, groups)

    def exchange(leaf):
        ndim = np.ndim(leaf)
        split = dimensions.check("all_to_all", "split_axis", split_axis, ndim)
        concat = dimensions.check("all_to_all", "concat_axis", concat_axis, ndim)
        length = np.shape(leaf)[split]
        if length % size if tiled else length != size:
            raise ValueError(
                f"jax_cxl.all_to_all: the size {length} of split_axis={split} must be"
                f" {'divisible by' if tiled else 'equal to'} the size {size} of the"
                " group."
            )
        leaf = named_axis.vary(leaf, axes)
        leaf = dimensions.split(leaf, split, size) if tiled else leaf
        out = all_to_all_p.bind(
            leaf,
            axes=axes,
            groups=groups,
            size=size,
            split=split,
            concat=concat,
            levels=levels,
        )
        return dimensions.merge(out, concat) if tiled else out

    return jax.tree.map(exchange, x)


# Removes dimension `split` and then inserts `concat`, both of size `size`; `tiled` is a
# reshape around it.
all_to_all_p = _compat.tracing.Primitive("all_to_all")


def _abstract_eval(x, *, axes, groups, size, split, concat, levels):
    shape = [*x.shape[:split], *x.shape[split + 1 :]]
    shape.insert(concat, size)
    return named_axis.abstract_result("all_to_all", x, axes, shape=shape)


def _lower(ctx, x, *, axes, groups, size, split, concat, levels):
    return choose.collective(
        ctx,
        x,
        name="all_to_all",
        op=Op.ALL_TO_ALL,
        axes=axes,
        groups=groups,
        operand_blocks=split,
        result_blocks=concat,
        levels=levels,
    )


def _transpose(ct, x, *, split, concat, axes, **params):
    ct = named_axis.vary(ct, axes)
    return [all_to_all_p.bind(ct, axes=axes, split=concat, concat=split, **params)]


def _batch_other_axis(x, d, *, split, concat, **params):
    split += d <= split
    d -= split < d
    concat += d <= concat
    out = all_to_all_p.bind(x, split=split, concat=concat, **params)
    return out, d + (concat <= d)


def _batch_own_axis(x, d, axis_size, *, split, concat, **params):
    if d is None:
        x, d = lax.broadcast(x, (axis_size,)), 0
    split += d <= split
    # The split dimension counts the receiving ranks, and the batch dimension the sending ranks.
    return jnp.moveaxis(x, (split, d), (0, concat + 1)), 0


all_to_all_p.def_effectful_abstract_eval(_abstract_eval)
lowering.register(all_to_all_p, _lower)
ad.deflinear2(all_to_all_p, _transpose)
batching_rules.register(all_to_all_p, _batch_other_axis, _batch_own_axis)
