"""jax_cxl.all_gather."""

from typing import Any

import jax
import numpy as np

from jax_cxl import _compat
from jax_cxl._lowering.contract import Op
from jax_cxl._lowering.levels import primitive
from jax_cxl._lowering.primitives import arguments, dimensions, named_axis
from jax_cxl._lowering.primitives.documentation import documented
from jax_cxl._lowering.primitives.named_axis import AxisName, GroupLists


@documented()
def all_gather(
    x: Any,
    axis_name: AxisName,
    *,
    axis_index_groups: GroupLists = None,
    axis: int = 0,
    tiled: bool = False,
    to: str = "varying",
    levels: bool | None = None,
) -> Any:
    """Gathers the values of x of all ranks along a named axis, on all of them.

    Drop-in for `jax.lax.all_gather`. Its transpose is `psum_scatter`.

    Args:
      axis: dimension of the result along which the values lie.
      tiled: if False, the result has a new dimension `axis` with the size of the group. If True,
        the values are concatenated along the existing dimension `axis`.
      to: "varying", or "invarying" for a result whose type says that it is equal on all ranks, so
        that its gradient needs no communication. Without check_vma both do the same.

    Returns:
      Arrays of x's dtype. For x of shape (a, b), n ranks and axis=1, the shape is (a,
      n, b) untiled and (a, n * b) tiled.

    Raises:
      ValueError: `axis` is out of bounds.
      NotImplementedError: `to="reduced"`, or groups with `to="invarying"`.

    Example:
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
    axes, groups, size = named_axis.groups_along("all_gather", axis_name, axis_index_groups)
    if not axes:
        return x
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

    def gather(leaf):
        ndim = np.ndim(leaf) + (not tiled)
        dim = dimensions.check("all_gather", "axis", axis, ndim)
        out = all_gather_p.bind(
            named_axis.vary(leaf, axes),
            axes=axes,
            groups=groups,
            size=size,
            result_blocks=dim,
            invariant=invariant,
            levels=levels,
        )
        return dimensions.merge(out, dim) if tiled else out

    return jax.tree.map(gather, x)


all_gather_p = primitive.make("all_gather", Op.ALL_GATHER)
