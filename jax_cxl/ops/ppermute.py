"""jax_cxl.ppermute and jax_cxl.pshuffle."""

from collections.abc import Sequence
from typing import Any

import jax
from jax import lax
from jax.interpreters import ad

from jax_cxl._lowering.contract import Op
from jax_cxl._lowering.levels import primitive
from jax_cxl._lowering.primitives import arguments, named_axis
from jax_cxl._lowering.primitives.documentation import documented
from jax_cxl._lowering.primitives.named_axis import AxisName


@documented()
def ppermute(
    x: Any,
    axis_name: AxisName,
    perm: Sequence[tuple[int, int]],
) -> Any:
    """Sends x from rank to rank along a named axis.

    Drop-in for `jax.lax.ppermute`. Its transpose is the inverse permutation. A rank waits only for
    the ranks of its own cycle or chain of pairs. A rank without a pair waits for no other rank.

    Args:
      axis_name: mesh axis, or several. Ranks along several axes are counted as in
        `jax.lax.ppermute`: with JAX 0.10 in the order of the mesh, with later versions in the order
        that is given.
      perm: pairs (source, destination) of axis indices, each index at most once on
        either side.

    Returns:
      Arrays of x's shape and dtype: the x of the source, or zeros on ranks without a source.

    Raises:
      TypeError: perm is neither a list nor a tuple.
      ValueError: an index is out of bounds, or twice on one side; or the axes are in another order
        than in the mesh, and `jax_raise_on_ppermute_sort_diff` (newer JAX) refuses that.

    Example:
      >>> perm = [(0, 1), (1, 2), (2, 3)]
      >>> shift = jax.shard_map(lambda x: jax_cxl.ppermute(x, "i", perm),
      ...                       mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P("i"))
      >>> jax.jit(shift)(jnp.arange(1, 5))
      Array([0, 1, 2, 3], dtype=int32)
    """
    axes = named_axis.permuted_axes_of("ppermute", axis_name)
    sources = sources_of("ppermute", axes, perm)
    return jax.tree.map(
        lambda leaf: ppermute_p.bind(named_axis.vary(leaf, axes), axes=axes, sources=sources),
        x,
    )


@documented()
def pshuffle(x: Any, axis_name: AxisName, perm: Sequence[int]) -> Any:
    """Sends the x of rank perm[i] to rank i, along a named axis.

    Drop-in for `jax.lax.pshuffle`, which is `ppermute` with another encoding of the permutation.

    Args:
      perm: a permutation of the axis indices.

    Returns:
      Arrays of x's shape and dtype.

    Raises:
      TypeError: perm is not a list of integers.
      ValueError: perm is not a permutation of the axis indices.

    Example:
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


def sources_of(name: str, axes: named_axis.Axes, perm: Any) -> tuple[int, ...]:
    """Checks `perm`; returns, for each index, the index from which it receives, -1 for none."""
    if not isinstance(perm, (list, tuple)):
        raise TypeError(f"jax_cxl.{name}: perm must be a list or tuple of pairs, got {type(perm)}.")
    size = lax.axis_size(axes)
    pairs = arguments.tuples(name, "perm", perm)
    if any(len(pair) != 2 for pair in pairs):
        raise ValueError(f"jax_cxl.{name}: perm must be pairs (source, destination), got {perm}.")
    if any(not -size <= i < size for pair in pairs for i in pair):
        raise ValueError(
            f"jax_cxl.{name}: perm has indices out of bounds for {axes} of size {size}: {perm}."
        )
    pairs = tuple((source % size, destination % size) for source, destination in pairs)
    if any(len(set(side)) != len(pairs) for side in zip(*pairs, strict=True)):
        raise ValueError(f"jax_cxl.{name}: sources and destinations must be unique, got {perm}.")
    source_of = {destination: source for source, destination in pairs}
    return tuple(source_of.get(r, -1) for r in range(size))


# The parameter `sources` of this primitive is what `sources_of` returns.
ppermute_p = primitive.make("ppermute", Op.PERMUTE)


def _transpose(ct, x, *, axes, sources):
    destinations = tuple(sources.index(r) if r in sources else -1 for r in range(len(sources)))
    return [ppermute_p.bind(named_axis.vary(ct, axes), axes=axes, sources=destinations)]


ad.deflinear2(ppermute_p, _transpose)
