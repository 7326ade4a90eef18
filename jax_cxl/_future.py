"""The value of a collective that has been started."""

import dataclasses
import functools
from typing import Any

import jax


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["value"], meta_fields=["operation"]
)
@dataclasses.dataclass(frozen=True)
class Future:
    """What `all_gather_start` and its like return; `done` returns the collective's result.

    It is a pytree: it can be carried through `jax.lax.scan`, `jax.checkpoint` or
    `jax.vmap`, and derivatives pass through it.

    Attributes:
      value: the result, to be read through `done` only.
      operation: name of the collective.
    """

    value: Any
    operation: str

    def done(self) -> Any:
        """Returns the result of the collective, for which whoever uses it waits."""
        return self.value
