"""jax_cxl.reduce."""

from collections.abc import Hashable, Sequence
from typing import Any

import jax
from jax import lax

from jax_cxl import _compat
from jax_cxl._lowering.contract import Op
from jax_cxl._lowering.primitives import batching_rules, dtypes, lowering, named_axis


def reduce(x: Any, axis_name: Hashable | Sequence[Hashable], *, root: int = 0) -> Any:
    """Sums x over all ranks along a named axis, and gives the root the sum.

    Differentiates to `broadcast`. The sum adds the ranks' values in rank order;
    float16, bfloat16 and float8 accumulate in float32 and round once.

    Args:
      x: array, or pytree of arrays, of any dtype; bool counts as int32.
      axis_name: mesh axis, or several in the order in which they count ranks.
      root: index of the root along the axis.

    Returns:
      Arrays of x's shape and dtype (int32 for bool): the sum on the root, zeros
      elsewhere.

    Raises:
      NameError: the axis is not bound, as outside `jax.shard_map`.
      NotImplementedError: the root is a traced value.
      TypeError: a dtype is not supported, such as float6_e2m3fn.
      ValueError: the root is out of bounds.

    Example:
      >>> mesh = jax_cxl.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
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


# The result is undefined on all ranks except the root.
reduce_p = _compat.tracing.Primitive("reduce_to_root")


def _abstract_eval(x, *, axes, root):
    return named_axis.abstract_result("reduce", x, axes)


def _lower(ctx, x, *, axes, root):
    return lowering.collective(ctx, x, name="reduce", op=Op.REDUCE, axes=axes, root=root)


def _batch_other_axis(x, d, **params):
    return reduce_p.bind(x, **params), d


def _batch_own_axis(x, d, axis_size, **params):
    if d is None:
        return lax.mul(x, lax.full_like(x, axis_size)), None
    return dtypes.reduce_in_one_rounding(lax.reduce_sum, x, (d,)), None


reduce_p.def_effectful_abstract_eval(_abstract_eval)
lowering.register(reduce_p, _lower)
batching_rules.register(reduce_p, _batch_other_axis, _batch_own_axis)
