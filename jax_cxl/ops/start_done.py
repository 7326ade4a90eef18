"""The collectives in two halves: `x_start` starts one, `x_done` waits for it."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax

from jax_cxl._lowering.start_done import future as futures, split_function
from jax_cxl._lowering.start_done.future import Future
from jax_cxl.ops.all_gather import all_gather
from jax_cxl.ops.all_to_all import all_to_all, pswapaxes
from jax_cxl.ops.moe.combine import moe_combine, moe_combine_halves
from jax_cxl.ops.moe.dispatch import moe_dispatch, moe_dispatch_halves
from jax_cxl.ops.ppermute import ppermute, pshuffle
from jax_cxl.ops.psum_scatter import psum_scatter
from jax_cxl.ops.ragged_all_to_all import ragged_all_to_all
from jax_cxl.ops.reductions import pand, pmax, pmean, pmin, por, psum
from jax_cxl.ops.rooted import broadcast, gather, pbroadcast, reduce, scatter
from jax_cxl.ops.scan import pexscan, pscan
from jax_cxl.ops.take_rows import take_rows

_START = """\
Starts `{name}` and returns a future of its result.

Operations between the start and `{name}_done` run during the collective, unless they need its
result.
The arguments, errors and derivatives are those of `{name}`.

On CPUs the two halves change nothing, because a collective never blocks XLA: XLA starts it
when its operands are ready, and only operations that use the result wait for it.

On GPUs the collective runs on a stream of its own. `jax_cxl.Future` shows how to put the start
before a computation and the wait after it. Under `jax.vmap`, and in derivatives, the program
waits for the collective at once.{note}

Returns:
  A `jax_cxl.Future`, a pytree. Its method `done` does the same as `{name}_done`.

Example:
  >>> mesh = jax_cxl.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
  >>> def body(x, y):
  ...   future = jax_cxl.psum_start(x, "i")
  ...   y = jnp.sin(y)  # while the sum is under way
  ...   return jax_cxl.psum_done(future) + y
  >>> step = jax.shard_map(body, mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P("i"))
  >>> jax.jit(step)(jnp.arange(4), jnp.zeros(4))
  Array([6., 6., 6., 6.], dtype=float32)
"""

_DONE = """\
Returns the result of a `{name}` that `{name}_start` has started.

Args:
  future: the future that `{name}_start` returned.
  after: pytree of arrays. On GPUs the wait for the result comes after their computation.

Returns:
  What `{name}` returns.

Raises:
  TypeError: the argument is not the future of a `{name}_start`.
"""


_NOTES = {
    "ragged_all_to_all": " It always waits at once for a ragged exchange.",
    "moe_combine": " Only the move of the rows runs beside other work; the weights are gathered"
    " before.",
    "moe_dispatch": " Only the move of the rows runs beside other work; the choices are gathered"
    " before. It waits at once with float8_block.",
}


def _pair(
    operation: Callable, halves: Callable | None = None
) -> tuple[Callable[..., Future], Callable[..., Any]]:
    """Makes the start and the done of an operation.

    Args:
      operation: the operation that is split in halves.
      halves: function of the same arguments that starts the operation's collectives on a GPU, and
        returns what `split_function.start` returns. By default, all collectives are started that do
        not depend on another collective.
    """
    name = operation.__name__
    halves = halves or functools.partial(split_function.start, operation)

    @functools.wraps(operation)
    def start(*args, **kwargs):
        # On CPUs a future holds the result itself. What counts is the default backend at the time
        # of tracing.
        if jax.default_backend() == "cpu":
            return Future(operation(*args, **kwargs), name)
        return futures.of(name, *halves(*args, **kwargs))

    def done(future: Future, after: Any = None) -> Any:
        if not isinstance(future, Future) or future.operation != name:
            got = f"that of {future.operation}" if isinstance(future, Future) else type(future)
            raise TypeError(f"jax_cxl.{name}_done takes the future of {name}_start, got {got}.")
        return future.done(after)

    note = _NOTES.get(name, "")
    signature = inspect.signature(operation)
    if "levels" in signature.parameters:
        note += " It waits at once with `levels=True` too."
    start.__signature__ = signature.replace(return_annotation=Future)  # type: ignore[attr-defined]
    for function, suffix, text in ((start, "start", _START), (done, "done", _DONE)):
        function.__name__ = function.__qualname__ = f"{name}_{suffix}"
        function.__module__ = __name__
        function.__doc__ = text.format(name=name, note=note)
    return start, done


all_gather_start, all_gather_done = _pair(all_gather)
all_to_all_start, all_to_all_done = _pair(all_to_all)
broadcast_start, broadcast_done = _pair(broadcast)
gather_start, gather_done = _pair(gather)
moe_combine_start, moe_combine_done = _pair(moe_combine, moe_combine_halves)
moe_dispatch_start, moe_dispatch_done = _pair(moe_dispatch, moe_dispatch_halves)
pand_start, pand_done = _pair(pand)
pbroadcast_start, pbroadcast_done = _pair(pbroadcast)
pexscan_start, pexscan_done = _pair(pexscan)
pmax_start, pmax_done = _pair(pmax)
pmean_start, pmean_done = _pair(pmean)
pmin_start, pmin_done = _pair(pmin)
por_start, por_done = _pair(por)
ppermute_start, ppermute_done = _pair(ppermute)
pscan_start, pscan_done = _pair(pscan)
pshuffle_start, pshuffle_done = _pair(pshuffle)
psum_start, psum_done = _pair(psum)
psum_scatter_start, psum_scatter_done = _pair(psum_scatter)
pswapaxes_start, pswapaxes_done = _pair(pswapaxes)
ragged_all_to_all_start, ragged_all_to_all_done = _pair(ragged_all_to_all)
reduce_start, reduce_done = _pair(reduce)
scatter_start, scatter_done = _pair(scatter)
take_rows_start, take_rows_done = _pair(take_rows)

# A plain assignment of `__all__`, which type checkers cannot compute, would hide the names of this
# module from them (see public.py).
globals()["__all__"] = [name for name in list(globals()) if name.endswith(("_start", "_done"))]
