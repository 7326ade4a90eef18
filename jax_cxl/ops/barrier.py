"""jax_cxl.barrier."""

from collections.abc import Hashable, Sequence
from typing import Any

import jax
from jax.interpreters import ad, batching

from jax_cxl import _compat
from jax_cxl._job import exchange
from jax_cxl._lowering import contract
from jax_cxl._lowering.contract import Op
from jax_cxl._lowering.primitives import dtypes, lowering, named_axis, rank_groups


def barrier(
    x: Any = None,
    axis_name: Hashable | Sequence[Hashable] | None = None,
    *,
    name: str | None = None,
    timeout: float | None = None,
) -> Any:
    """Returns x once every rank along a named axis has reached this point.

    Without x and `axis_name` it is a barrier between the processes of the job, outside of compiled
    programs: it returns None once all processes have called it. An error names the late ranks.

    Data dependencies order the barrier of a program. It starts when the arrays of x have been
    computed. Operations that must come after it have to use its result. XLA may drop a barrier
    whose result is not used.

    Args:
      x: pytree of arrays of any dtype. Without any array the barrier does nothing.
      axis_name: mesh axis, or several.
      name: name of a barrier between processes, for messages. It is the same in all processes.
      timeout: seconds that a barrier between processes waits, by default `JAX_CXL_TIMEOUT`.

    Returns:
      x, unchanged. Derivatives pass through it without a barrier.

    Raises:
      NameError: the axis is not bound, as outside `jax.shard_map`.
      TypeError: there is only one of x and `axis_name`, or a barrier of a program has a name or a
        timeout.
      CollectiveTimeoutError: a process has not reached the barrier between processes in time.
      MismatchError: another process waits at a barrier of another name.
      PeerLostError: a process ended before it reached the barrier.

    Example:
      >>> mesh = jax_cxl.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
      >>> wait = jax.shard_map(lambda x: jax_cxl.barrier(x, "i"),
      ...                      mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P("i"))
      >>> jax.jit(wait)(jnp.arange(4))
      Array([0, 1, 2, 3], dtype=int32)
      >>> jax_cxl.barrier(name="data is on disk", timeout=600)
    """
    if axis_name is None:
        if x is not None:
            raise TypeError("barrier: x needs an axis_name. Pass both, or neither of them")
        what = f"barrier {name or 'barrier'!r}"
        if timeout is not None and not timeout > 0:  # A comparison with nan is false.
            raise ValueError(f"{what}: the timeout must be greater than 0 seconds, got {timeout}")
        exchange.all_gather("barrier", what, b"", timeout)
        return None
    if name is not None or timeout is not None:
        raise TypeError("barrier: name and timeout work only without axis_name. Leave them out")
    axes = named_axis.axes_of("barrier", axis_name)
    leaves, structure = jax.tree.flatten(x)
    if not axes or not leaves:
        return x
    return jax.tree.unflatten(structure, barrier_p.bind(*leaves, axes=axes))


barrier_p = _compat.tracing.Primitive("barrier")
barrier_p.multiple_results = True


def _abstract_eval(*xs, axes):
    for x in xs:
        if jax.dtypes.issubdtype(x.dtype, jax.dtypes.extended):
            dtypes.check_dtype("barrier", x.dtype)
    # Each rank gets its own values back. So the results have the types of the operands, including
    # the axes over which they vary.
    return list(xs), {named_axis.effect("barrier", axis) for axis in axes}


def _lower(ctx, *xs, axes):
    ranks = rank_groups.of_groups(ctx, "barrier", axes, None)
    if ranks.shape[1] == 1:
        return list(xs)
    call = jax.ffi.ffi_lowering(
        contract.BARRIER_TARGET,
        operand_output_aliases={i: i for i in range(len(xs))},
        has_side_effect=True,
    )
    return call(ctx, *xs, **lowering.attributes(ctx, "barrier", Op.BARRIER, ranks))


def _batch(axis_data, xs, dims, *, axes):
    # One rank runs all elements of an axis of vmap, so it need not wait along that axis.
    axes = tuple(axis for axis in axes if axis != axis_data.name)
    return (barrier_p.bind(*xs, axes=axes) if axes else list(xs)), list(dims)


barrier_p.def_effectful_abstract_eval(_abstract_eval)
lowering.register(barrier_p, _lower)
# Tangents bypass the barrier, so that its transpose is the identity.
ad.primitive_jvps[barrier_p] = lambda primals, tangents, *, axes: (
    barrier_p.bind(*primals, axes=axes),
    list(tangents),
)
batching.fancy_primitive_batchers[barrier_p] = _batch
