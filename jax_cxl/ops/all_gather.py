"""jax_cxl.all_gather."""

from collections.abc import Hashable, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax

from jax_cxl import _compat
from jax_cxl._lowering.contract import Op
from jax_cxl._lowering.levels import choose
from jax_cxl._lowering.primitives import arguments, batching_rules, dimensions, lowering, named_axis


def all_gather(
    x: Any,
    axis_name: Hashable | Sequence[Hashable],
    *,
    axis_index_groups: Sequence[Sequence[int]] | None = None,
    axis: int = 0,
    tiled: bool = False,
    to: str = "varying",
    levels: bool | None = None,
) -> Any:
    """Gathers the values of x of all ranks along a named axis, on all of them.

    Drop-in for `jax.lax.all_gather`. Its transpose is `psum_scatter`.

    Args:
      x: array, or pytree of arrays, of any dtype.
      axis_name: mesh axis, or several in the order in which they count ranks.
      axis_index_groups: lists of axis indices, all of the same size and together a
        partition of the axis. Each group gathers its own values. By default all ranks are one
        group.
      axis: dimension of the result along which the values lie.
      tiled: if False, the result has a new dimension `axis` with the size of the group. If True,
        the values are concatenated along the existing dimension `axis`.
      to: "varying", or "invarying" for a result whose type says that it is equal on all ranks, so
        that its gradient needs no communication. Without check_vma both do the same.
      levels: True combines the data of each process before they go through the pool, False
        does not. None chooses the faster way for the size (docs/levels.md).

    Returns:
      Arrays of x's dtype. For x of shape (a, b), n ranks and axis=1, the shape is (a,
      n, b) untiled and (a, n * b) tiled.

    Raises:
      NameError: the axis is not bound, as outside `jax.shard_map`.
      TypeError: a dtype is not supported, such as float6_e2m3fn.
      ValueError: `axis` is out of bounds, the groups are not a partition, or `levels=True` for
        groups that do not have the same number of ranks, at least two, in each process.
      NotImplementedError: `to="reduced"`, or groups with `to="invarying"`.

    Example:
      >>> mesh = jax_cxl.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
      >>> gather = jax.shard_map(lambda x: jax_cxl.all_gather(x, "i", tiled=True),
      ...                        mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P("i"))
      >>> jax.jit(gather)(jnp.arange(4)).reshape(4, 4)
      Array([[0, 1, 2, 3],
             [0, 1, 2, 3],
             [0, 1, 2, 3],
             [0, 1, 2, 3]], dtype=int32)
    """
    if to not in ("varying", "invarying", "reduced"):
        raise ValueError(
            f"jax_cxl.all_gather: to={to!r} must be 'varying', 'invarying' or 'reduced'."
        )
    tiled = arguments.boolean("all_gather", "tiled", tiled)
    levels = arguments.levels("all_gather", levels)
    axes = named_axis.axes_of("all_gather", axis_name)
    if not axes:
        return x
    groups = named_axis.groups_of("all_gather", axes, axis_index_groups)
    invariant = _compat.tracing.check_vma() and to == "invarying"
    if _compat.tracing.check_vma() and to == "reduced":
        raise NotImplementedError(
            "jax_cxl.all_gather does not support to='reduced': use to='invarying', or"
            " jax.lax.all_gather."
        )
    if invariant and (groups is not None or named_axis.manual(axes) != axes):
        raise NotImplementedError(
            "jax_cxl.all_gather: to='invarying' works over whole mesh axes only, not"
            " with axis_index_groups or axes of jax.vmap: use to='varying'."
        )
    size = named_axis.group_size(axes, groups)

    def gather(leaf):
        ndim = np.ndim(leaf) + (not tiled)
        dim = dimensions.check("all_gather", "axis", axis, ndim)
        out = all_gather_p.bind(
            named_axis.vary(leaf, axes),
            axes=axes,
            groups=groups,
            size=size,
            dim=dim,
            invariant=invariant,
            levels=levels,
        )
        return dimensions.merge(out, dim) if tiled else out

    return jax.tree.map(gather, x)


# Inserts dimension `dim` of size `size`; `tiled` is a reshape around it.
all_gather_p = _compat.tracing.Primitive("all_gather")


def _abstract_eval(x, *, axes, groups, size, dim, invariant, levels):
    shape = (*x.shape[:dim], size, *x.shape[dim:])
    return named_axis.abstract_result("all_gather", x, axes, shape=shape, invariant=invariant)


def _lower(ctx, x, *, axes, groups, size, dim, invariant, levels):
    return choose.collective(
        ctx,
        x,
        name="all_gather",
        op=Op.ALL_GATHER,
        axes=axes,
        groups=groups,
        result_blocks=dim,
        levels=levels,
    )


def _batch_other_axis(x, d, *, dim, **params):
    if d <= dim:
        return all_gather_p.bind(x, dim=dim + 1, **params), d
    return all_gather_p.bind(x, dim=dim, **params), d + 1


def _batch_own_axis(x, d, axis_size, *, dim, **params):
    if d is None:
        x, d = lax.broadcast(x, (axis_size,)), 0
    return jax.numpy.moveaxis(x, d, dim), None


all_gather_p.def_effectful_abstract_eval(_abstract_eval)
lowering.register(all_gather_p, _lower)
batching_rules.register(all_gather_p, _batch_other_axis, _batch_own_axis)
