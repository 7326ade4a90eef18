"""The collectives in two halves: `x_start` starts one, `x_done` waits for it."""

import functools
import inspect
import textwrap
from collections.abc import Callable
from typing import Any

import jax

from jax_cxl import _split, _start
from jax_cxl._future import Future
from jax_cxl.ops.all_gather import all_gather
from jax_cxl.ops.all_to_all import all_to_all
from jax_cxl.ops.broadcast import broadcast
from jax_cxl.ops.gather import gather
from jax_cxl.ops.pbroadcast import pbroadcast
from jax_cxl.ops.pexscan import pexscan
from jax_cxl.ops.pmax import pmax
from jax_cxl.ops.pmean import pmean
from jax_cxl.ops.pmin import pmin
from jax_cxl.ops.ppermute import ppermute
from jax_cxl.ops.pscan import pscan
from jax_cxl.ops.pshuffle import pshuffle
from jax_cxl.ops.psum import psum
from jax_cxl.ops.psum_scatter import psum_scatter
from jax_cxl.ops.pswapaxes import pswapaxes
from jax_cxl.ops.ragged_all_to_all import ragged_all_to_all
from jax_cxl.ops.reduce import reduce
from jax_cxl.ops.scatter import scatter

_START = """\
Starts `{name}` and returns a future of its result.

What comes between the start and the use of `{name}_done` runs meanwhile, unless it needs
the result. The arguments, errors and derivatives are those of `{name}`.

On CPU a collective never blocks XLA, so that the two halves only say what XLA does anyway:
it starts a collective when its operands are there, and makes wait for it what uses the
result and nothing else.

On GPUs the collective runs on a stream of its own; see `jax_cxl.Future` for how to put the start
in front of the computation and the wait behind it. Under `jax.vmap`, and in derivatives, it is
waited for at once.{note}

Returns:
  A `jax_cxl.Future`, a pytree. Its method `done` does the same as `{name}_done`.

Example:
  >>> mesh = jax.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
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
  future: of `{name}_start`.
  after: pytree of arrays; on GPUs the wait for the result is put behind what computes them.

Raises:
  TypeError: the argument is not the future of a `{name}_start`.
"""


_RAGGED = " A ragged exchange is always waited for at once."


class _Finish:
    """Waits for the collectives of an operation and evaluates what follows them.

    All are equal, so that a loop may seem to carry a future: the lowering rules then say what is
    wrong with that, better than JAX would of two futures of different structure.
    """

    def __init__(self, rest: _split.Rest):
        self._rest = rest

    def __call__(self, value: Any, after: Any) -> Any:
        pending, others = value
        results = [_start.done(x, y, token, after) for x, y, token in pending]
        return self._rest(results, others)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Finish)

    def __hash__(self) -> int:
        return hash(_Finish)


def _start_on_gpu(name: str, operation: Callable, args: tuple, kwargs: dict) -> Future:
    pending, others, rest = _split.start(lambda a, k: operation(*a, **k), args, kwargs)
    return Future((pending, others), name, _Finish(rest))


def _pair(operation: Callable) -> tuple[Callable[..., Future], Callable[..., Any]]:
    name = operation.__name__

    @functools.wraps(operation)
    def start(*args, **kwargs):
        # The backend decides, and not the lowering rule: on CPUs a future is the result.
        if jax.default_backend() == "cpu":
            return Future(operation(*args, **kwargs), name)
        return _start_on_gpu(name, operation, args, kwargs)

    def done(future: Future, after: Any = None) -> Any:
        if not isinstance(future, Future) or future.operation != name:
            got = f"that of {future.operation}" if isinstance(future, Future) else type(future)
            raise TypeError(f"jax_cxl.{name}_done takes the future of {name}_start, got {got}.")
        return future.done(after)

    note = _RAGGED if operation is ragged_all_to_all else ""
    signature = inspect.signature(operation)
    start.__signature__ = signature.replace(return_annotation=Future)  # type: ignore[attr-defined]
    for function, suffix, text in ((start, "start", _START), (done, "done", _DONE)):
        function.__name__ = function.__qualname__ = f"{name}_{suffix}"
        function.__module__ = __name__
        text = text.format(name=name, note=note)
        function.__doc__ = textwrap.indent(text, "    ").strip() + "\n    "
    return start, done


all_gather_start, all_gather_done = _pair(all_gather)
all_to_all_start, all_to_all_done = _pair(all_to_all)
broadcast_start, broadcast_done = _pair(broadcast)
gather_start, gather_done = _pair(gather)
pbroadcast_start, pbroadcast_done = _pair(pbroadcast)
pexscan_start, pexscan_done = _pair(pexscan)
pmax_start, pmax_done = _pair(pmax)
pmean_start, pmean_done = _pair(pmean)
pmin_start, pmin_done = _pair(pmin)
ppermute_start, ppermute_done = _pair(ppermute)
pscan_start, pscan_done = _pair(pscan)
pshuffle_start, pshuffle_done = _pair(pshuffle)
psum_start, psum_done = _pair(psum)
psum_scatter_start, psum_scatter_done = _pair(psum_scatter)
pswapaxes_start, pswapaxes_done = _pair(pswapaxes)
ragged_all_to_all_start, ragged_all_to_all_done = _pair(ragged_all_to_all)
reduce_start, reduce_done = _pair(reduce)
scatter_start, scatter_done = _pair(scatter)
