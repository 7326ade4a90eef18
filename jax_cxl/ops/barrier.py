"""jax_cxl.barrier."""

from collections.abc import Hashable, Sequence
from typing import Any

import jax
from jax.extend import core
from jax.interpreters import ad, batching

from jax_cxl import _axis, _lowering


def barrier(x: Any, axis_name: Hashable | Sequence[Hashable]) -> Any:
    """Returns x once every rank along a named axis has reached this point.

    Data orders the barrier: it starts when the arrays of x are there, and what must
    come after it has to use the result. A barrier whose result nobody uses may be
    dropped.

    Args:
      x: pytree of arrays of any dtype; without an array nothing orders the barrier, and
        it does nothing.
      axis_name: mesh axis, or several.

    Returns:
      x, unchanged. Derivatives pass through it without a barrier.

    Raises:
      NameError: the axis is not bound, as outside `jax.shard_map`.

    Example:
      >>> mesh = jax.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
      >>> wait = jax.shard_map(lambda x: jax_cxl.barrier(x, "i"),
      ...                      mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P("i"))
      >>> jax.jit(wait)(jnp.arange(4))
      Array([0, 1, 2, 3], dtype=int32)
    """
    axes = _axis.axes_of("barrier", axis_name)
    leaves, structure = jax.tree.flatten(x)
    if not axes or not leaves:
        return x
    return jax.tree.unflatten(structure, barrier_p.bind(*leaves, axes=axes))


barrier_p = core.Primitive("barrier")
barrier_p.multiple_results = True


def _abstract_eval(*xs, axes):
    for x in xs:
        if jax.dtypes.issubdtype(x.dtype, jax.dtypes.extended):
            _axis.check_dtype("barrier", x.dtype)
    # The value on each rank is its own, so the types stay as they are.
    return list(xs), {_axis.effect("barrier", axis) for axis in axes}


def _lower(ctx, *xs, axes):
    return _lowering.barrier(ctx, *xs, name="barrier", axes=axes)


def _jvp(primals, tangents, *, axes):
    # Tangents take no part, which also makes the transpose the identity.
    return barrier_p.bind(*primals, axes=axes), list(tangents)


def _batch(axis_data, xs, dims, *, axes):
    # One rank runs all elements of an axis of vmap, so there is nothing to wait for
    # along it.
    axes = tuple(axis for axis in axes if axis != axis_data.name)
    return (barrier_p.bind(*xs, axes=axes) if axes else list(xs)), list(dims)


barrier_p.def_effectful_abstract_eval(_abstract_eval)
_lowering.register(barrier_p, _lower)
ad.primitive_jvps[barrier_p] = _jvp
batching.fancy_primitive_batchers[barrier_p] = _batch
