"""jax_cxl.pshuffle."""

from collections.abc import Hashable, Sequence
from typing import Any

from jax import lax

from jax_cxl._lowering.primitives import arguments, named_axis
from jax_cxl.ops.ppermute import ppermute


def pshuffle(x: Any, axis_name: Hashable | Sequence[Hashable], perm: Sequence[int]) -> Any:
    """Sends the x of rank perm[i] to rank i, along a named axis.

    Drop-in for `jax.lax.pshuffle`, which is `ppermute` with another encoding of the permutation.

    Args:
      x: array, or pytree of arrays, of any dtype.
      axis_name: mesh axis, or several in the order in which they count ranks.
      perm: a permutation of the axis indices.

    Returns:
      Arrays of x's shape and dtype.

    Raises:
      NameError: the axis is not bound, as outside `jax.shard_map`.
      TypeError: perm is not a list of integers.
      ValueError: perm is not a permutation of the axis indices.

    Example:
      >>> mesh = jax_cxl.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
      >>> shuffle = jax.shard_map(lambda x: jax_cxl.pshuffle(x, "i", [3, 0, 1, 2]),
      ...                         mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P("i"))
      >>> jax.jit(shuffle)(jnp.arange(4))
      Array([3, 0, 1, 2], dtype=int32)
    """
    axes = named_axis.permuted_axes_of("pshuffle", axis_name)
    (sources,) = arguments.tuples("pshuffle", "perm", [perm])
    if sorted(sources) != list(range(size := lax.axis_size(axes))):
        raise ValueError(
            f"jax_cxl.pshuffle: perm={perm} is not a permutation of the indices 0 to {size - 1} of"
            f" {axes}."
        )
    return ppermute(x, axis_name, [(source, i) for i, source in enumerate(sources)])
