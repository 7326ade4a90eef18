"""The value of a collective that has been started."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["value"],
    meta_fields=["operation", "finish"],
)
@dataclasses.dataclass(frozen=True)
class Future:
    """What `all_gather_start` and its like return; `done` returns the collective's result.

    It is a pytree, and derivatives pass through it. On CPUs it can be carried through
    `jax.lax.scan`, `jax.checkpoint` or `jax.vmap`. On GPUs it has to be done in the same function,
    or iteration of a loop, as the start: XLA may copy what a loop carries, and would copy an
    unfinished result. Carry the result of `done`.

    On GPUs XLA decides in which order it runs what does not depend on each other, and takes a
    collective for a kernel like any other. `tie` and the argument `after` of `done` make the order
    that lets both run at once:

      future = jax_cxl.all_gather_start(next_layer, "i", tiled=True)
      x = future.tie(x)               # what uses x comes after the start
      y = layer(parameters, x)
      parameters = future.done(after=y)   # and the wait after what computes y

    Each future must be done, and from there on only the result be used.

    Attributes:
      value: the result, or what it is made of; to be read through `done` only.
      operation: name of the collective.
      finish: on GPUs, (value, after) -> the result; else None.
    """

    value: Any
    operation: str
    finish: Callable[[Any, Any], Any] | None = None

    def tie(self, h: Any) -> Any:
        """Returns h, unchanged, such that its uses come after the start of the collective.

        Use only the returned value from here on: where the old one is used too, XLA copies it.

        Args:
          h: pytree of arrays, not the operand of the collective nor its result. An argument of
            the program that is not donated is copied: tie something small or computed.
        """
        if self.finish is None:
            return h
        from jax_cxl import _start  # Here and not above: it imports the lowering rules.

        for _, _, token in self.value[0]:
            h = _start.tie(token, h)
        return h

    def done(self, after: Any = None) -> Any:
        """Returns the result of the collective, for which whoever uses it waits.

        Args:
          after: pytree of arrays; on GPUs the wait is put behind what computes them.
        """
        return self.value if self.finish is None else self.finish(self.value, after)
