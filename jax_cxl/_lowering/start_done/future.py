"""Futures: collectives that have been started."""

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

import jax

from jax_cxl._lowering.start_done import halves, split_function

_STATIC = {"static": True}
_Function = TypeVar("_Function", bound=Callable[..., Any])
METHODS: list[Callable[..., Any]] = []  # that `jax_cxl.start` starts


def startable(method: _Function) -> _Function:
    """Lets `jax_cxl.start` start a method."""
    METHODS.append(method)
    return method


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Future:
    """A started collective or read of table rows, from `jax_cxl.start`.

    A future is a pytree, and derivatives pass through it. On CPUs it can be carried through
    `jax.lax.scan`, `jax.checkpoint` or `jax.vmap`. On GPUs call `done` in the same function, or the
    same iteration of a loop, as the start: XLA may copy values that a loop carries, and would copy
    an unfinished result. Carry the result of `done` instead.

    On GPUs XLA chooses the order of operations that do not depend on each other, and treats a
    collective like any kernel. `tie` and the argument `after` of `done` fix an order in which the
    collective runs during the computation:

      future = jax_cxl.start(jax_cxl.all_gather, next_layer, "i", tiled=True)
      x = future.tie(x)                   # uses of x come after the start
      y = layer(parameters, x)
      parameters = future.done(after=y)   # the wait comes after the computation of y

    Call `done` on every future. After that use its result, not the future.

    Attributes:
      value: private; read it through `done`.
      operation: name of the function.
      finish: private; a function on GPUs, None on CPUs.
    """

    value: Any
    operation: str = dataclasses.field(metadata=_STATIC)
    finish: Callable[[Any, Any], Any] | None = dataclasses.field(default=None, metadata=_STATIC)

    def tie(self, h: Any) -> Any:
        """Returns h unchanged. Uses of the returned arrays come after the start of the collective.

        Use the returned arrays only: if an array of h is used elsewhere too, XLA copies it.

        Args:
          h: pytree of arrays. It must not contain the operand or the result of the collective. XLA
            also copies an array of h that is an argument of the program and is not donated, so tie
            small or computed values.

        Returns:
          A pytree like h.
        """
        if self.finish is None:
            return h
        for _, _, token in self.value[0]:
            h = halves.tie(token, h)
        return h

    def done(self, after: Any = None) -> Any:
        """Returns the result of the collective. Operations that use it wait for the collective.

        Args:
          after: pytree of arrays. On GPUs the wait comes after their computation.
        """
        return self.value if self.finish is None else self.finish(self.value, after)


class Finish:
    """Waits for the collectives of an operation and evaluates the rest of the operation.

    All instances are equal, so that JAX accepts a future as the carry of a loop. The lowering rules
    then raise an error with an explanation, which is clearer than JAX's error about two different
    tree structures.
    """

    def __init__(self, rest: split_function.Rest):
        self._rest = rest

    def __call__(self, value: Any, after: Any) -> Any:
        pending, others = value
        results = [halves.done(xs, y, token, after) for xs, y, token in pending]
        return self._rest(results, others)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Finish)

    def __hash__(self) -> int:
        return hash(Finish)
