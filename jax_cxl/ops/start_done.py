"""A collective in two halves: `start` starts it, and `done` of its future waits for it."""

import functools
import importlib
from collections.abc import Callable
from typing import Any

import jax

from jax_cxl._lowering.start_done import future as futures, split_function
from jax_cxl._lowering.start_done.future import Future
from jax_cxl.ops.moe.combine import moe_combine, moe_combine_halves
from jax_cxl.ops.moe.dispatch import moe_dispatch, moe_dispatch_halves

# Operations that cannot be started. They wait outside of programs, or are made of operations that
# need the results of each other.
_AT_ONCE = ("barrier", "pargmax", "pargmin", "precv", "process_gather", "psend", "start")
# Functions of the same arguments that start an operation in another way, and return what
# `split_function.start` returns.
_HALVES: dict[Callable[..., Any], Callable[..., Any]] = {
    moe_combine: moe_combine_halves,
    moe_dispatch: moe_dispatch_halves,
}


def startable() -> list[Callable[..., Any]]:
    """Returns all operations that can be started."""
    public = importlib.import_module("jax_cxl.ops.public")  # It imports this module.
    return [getattr(public, name) for name in public.__all__ if name not in _AT_ONCE]


def start(operation: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future:
    """Starts an operation and returns a future of its result.

    Operations between the start and `done` of the future run during the collective, unless they
    need its result. Errors and derivatives are those of the operation.

    On CPUs the two halves change nothing, because a collective never blocks XLA: XLA starts it
    when its operands are ready, and only operations that use the result wait for it.

    On GPUs the collective runs on a stream of its own. `jax_cxl.Future` shows how to put the start
    before a computation and the wait after it. The program waits for the collective at once under
    `jax.vmap`, in derivatives, for a `ragged_all_to_all`, and for a `moe_dispatch` with
    `float8_block`. Of `moe_dispatch` and `moe_combine` only the move of the rows runs beside other
    work; the choices and the weights are gathered before. The rows of a table are fetched by a
    kernel; the program waits for them at once in mode "error".

    Args:
      operation: an operation of jax_cxl that moves data, such as `jax_cxl.psum`, or the method
        `take` of a `jax_cxl.Table`.
      *args: arguments of the operation.
      **kwargs: further arguments of the operation.

    Returns:
      A `jax_cxl.Future`, a pytree. Its method `done` returns what the operation returns.

    Raises:
      TypeError: the operation cannot be started.

    Example:
      >>> mesh = jax_cxl.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
      >>> def body(x, y):
      ...   future = jax_cxl.start(jax_cxl.psum, x, "i")
      ...   y = jnp.sin(y)  # while the sum is under way
      ...   return future.done() + y
      >>> step = jax.shard_map(body, mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P("i"))
      >>> jax.jit(step)(jnp.arange(4), jnp.zeros(4))
      Array([6., 6., 6., 6.], dtype=float32)
    """
    operations = startable()
    function = getattr(operation, "__func__", operation)  # of a bound method
    if not any(function is each for each in (*operations, *futures.METHODS)):
        names = ", ".join(each.__name__ for each in operations)
        raise TypeError(
            f"jax_cxl.start cannot start {operation!r}: pass one of these functions of jax_cxl, or"
            f" Table.take, then its arguments: {names}."
        )
    name = operation.__name__
    # On CPUs a future holds the result itself. What counts is the default backend at the time of
    # tracing.
    if jax.default_backend() == "cpu":
        return Future(operation(*args, **kwargs), name)
    halves = _HALVES.get(operation) or functools.partial(split_function.start, operation)
    pending, others, rest = halves(*args, **kwargs)
    return Future((pending, others), name, futures.Finish(rest))
