"""jax_cxl.all_to_all and jax_cxl.pswapaxes."""

from typing import Any

import jax
import numpy as np
from jax.interpreters import ad

from jax_cxl._lowering.contract import Op
from jax_cxl._lowering.levels import primitive
from jax_cxl._lowering.primitives import arguments, dimensions, named_axis
from jax_cxl._lowering.primitives.documentation import documented
from jax_cxl._lowering.primitives.named_axis import AxisName, GroupLists


@documented()
def all_to_all(
    x: Any,
    axis_name: AxisName,
    split_axis: int,
    concat_axis: int,
    *,
    axis_index_groups: GroupLists = None,
    tiled: bool = False,
    levels: bool | None = None,
) -> Any:
    """Sends part i of x to rank i along a named axis, and joins the received parts.

    Drop-in for `jax.lax.all_to_all`. Its transpose is `all_to_all` with the two axes
    swapped.

    Args:
      split_axis: dimension of x that is divided among the ranks.
      concat_axis: dimension of the result along which the ranks' parts lie.
      tiled: if False, `split_axis` must have the size of the group; it is removed, and
        `concat_axis` is inserted. If True, the size of `split_axis` is divided by the size of the
        group, and the size of `concat_axis` is multiplied by it.

    Returns:
      Arrays of x's dtype. For x of shape (n, a, b), n ranks, split_axis=0 and
      concat_axis=1, the shape is (a, n, b) untiled and (1, n * a, b) tiled.

    Raises:
      ValueError: the divided dimension does not fit the size of the group.

    Example:
      >>> swap = jax.shard_map(lambda x: jax_cxl.all_to_all(x, "i", 1, 0, tiled=True),
      ...                      mesh=mesh, in_specs=jax.P("i"),
      ...                      out_specs=jax.P(None, "i"))
      >>> bool((jax.jit(swap)(jnp.eye(4)) == jnp.eye(4)).all())
      True
    """
    tiled = arguments.boolean("all_to_all", "tiled", tiled)
    levels = arguments.levels("all_to_all", levels)
    axes, groups, size = named_axis.groups_along("all_to_all", axis_name, axis_index_groups)
    if not axes:
        return x

    def exchange(leaf):
        split = dimensions.check_divided(
            "all_to_all", "split_axis", split_axis, leaf, size, tiled=tiled
        )
        concat = dimensions.check("all_to_all", "concat_axis", concat_axis, np.ndim(leaf))
        leaf = named_axis.vary(leaf, axes)
        leaf = dimensions.split(leaf, split, size) if tiled else leaf
        out = all_to_all_p.bind(
            leaf,
            axes=axes,
            groups=groups,
            size=size,
            operand_blocks=split,
            result_blocks=concat,
            levels=levels,
        )
        return dimensions.merge(out, concat) if tiled else out

    return jax.tree.map(exchange, x)


@documented()
def pswapaxes(
    x: Any,
    axis_name: AxisName,
    axis: int,
    *,
    axis_index_groups: GroupLists = None,
) -> Any:
    """Swaps a named axis with a dimension of x: element i goes to rank i.

    Drop-in for `jax.lax.pswapaxes`. It is `all_to_all(x, axis_name, axis, axis)`.

    Args:
      axis: dimension of x. It must have the size of the group.

    Returns:
      Arrays of x's shape and dtype.

    Raises:
      ValueError: the dimension does not have the size of the group.

    Example:
      >>> swap = jax.shard_map(lambda x: jax_cxl.pswapaxes(x, "i", 1),
      ...                      mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P("i"))
      >>> jax.jit(swap)(jnp.arange(16).reshape(4, 4))
      Array([[ 0,  4,  8, 12],
             [ 1,  5,  9, 13],
             [ 2,  6, 10, 14],
             [ 3,  7, 11, 15]], dtype=int32)
    """
    return all_to_all(x, axis_name, axis, axis, axis_index_groups=axis_index_groups)


all_to_all_p = primitive.make("all_to_all", Op.ALL_TO_ALL)


def _transpose(ct, x, *, axes, operand_blocks, result_blocks, **params):
    swapped = {"operand_blocks": result_blocks, "result_blocks": operand_blocks}
    return [all_to_all_p.bind(named_axis.vary(ct, axes), axes=axes, **swapped, **params)]


ad.deflinear2(all_to_all_p, _transpose)
