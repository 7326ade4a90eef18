"""jax_cxl.ppermute."""

from collections.abc import Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.interpreters import ad

from jax_cxl import _compat
from jax_cxl._lowering.contract import Op
from jax_cxl._lowering.primitives import arguments, batching_rules, lowering, named_axis


def ppermute(
    x: Any,
    axis_name: Hashable | Sequence[Hashable],
    perm: Sequence[tuple[int, int]],
) -> Any:
    """Sends x from rank to rank along a named axis.

    Drop-in for `jax.lax.ppermute`. Its transpose is the inverse permutation. A rank waits only for
    the ranks of its own cycle or chain of pairs. A rank without a pair waits for no other rank.

    Args:
      x: array, or pytree of arrays, of any dtype.
      axis_name: mesh axis, or several. Several count ranks as in `jax.lax.ppermute`: with JAX 0.10
        in the order of the mesh, with later versions in the order that is given.
      perm: pairs (source, destination) of axis indices, each index at most once on
        either side.

    Returns:
      Arrays of x's shape and dtype: the x of the source, or zeros on ranks without a source.

    Raises:
      NameError: the axis is not bound, as outside `jax.shard_map`.
      TypeError: a dtype is not supported, such as float6_e2m3fn, or perm is neither a list
        nor a tuple.
      ValueError: an index is out of bounds, or twice on one side; or the axes are in another order
        than in the mesh, and `jax_raise_on_ppermute_sort_diff` (newer JAX) refuses that.

    Example:
      >>> mesh = jax_cxl.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
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


# `sources[r]` is the index from which index r receives, -1 for none.
ppermute_p = _compat.tracing.Primitive("ppermute")


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


def _abstract_eval(x, *, axes, sources):
    return named_axis.abstract_result("ppermute", x, axes)


def _lower(ctx, x, *, axes, sources):
    return lowering.collective(ctx, x, name="ppermute", op=Op.PERMUTE, axes=axes, sources=sources)


def _transpose(ct, x, *, axes, sources):
    destinations = tuple(sources.index(r) if r in sources else -1 for r in range(len(sources)))
    return [ppermute_p.bind(named_axis.vary(ct, axes), axes=axes, sources=destinations)]


def _batch_other_axis(x, d, **params):
    return ppermute_p.bind(x, **params), d


def _batch_own_axis(x, d, axis_size, *, sources, **params):
    if d is None:
        x, d = lax.broadcast(x, (axis_size,)), 0
    index = np.array(sources)
    receives = np.expand_dims(index >= 0, [i for i in range(x.ndim) if i != d])
    return jnp.where(receives, jnp.take(x, np.maximum(index, 0), d), jnp.zeros_like(x)), d


ppermute_p.def_effectful_abstract_eval(_abstract_eval)
lowering.register(ppermute_p, _lower)
ad.deflinear2(ppermute_p, _transpose)
batching_rules.register(ppermute_p, _batch_other_axis, _batch_own_axis)
