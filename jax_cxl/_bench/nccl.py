"""Collectives of `jax.lax` between GPUs, which NCCL runs.

`jax.lax` has no gather, scatter or reduce to one rank. What a user would write instead, and what
is measured here, moves more than they have to: the nearest collective of all ranks.
"""

from collections.abc import Callable
from typing import Any

from jax import lax


def collective(name: str, ranks: int, axis: str) -> Callable[[Any], Any]:
    """Returns an operation on a rank's value.

    Args:
      name: of the operation.
      ranks: their number.
      axis: over which they lie.
    """
    ring = [(rank, (rank + 1) % ranks) for rank in range(ranks)]
    operations: dict[str, Callable[[Any], Any]] = {
        "all_gather": lambda x: lax.all_gather(x, axis, tiled=True),
        "psum": lambda x: lax.psum(x, axis),
        "psum_scatter": lambda x: lax.psum_scatter(x, axis, tiled=True),
        "all_to_all": lambda x: lax.all_to_all(x, axis, 0, 0, tiled=True),
        "broadcast": lambda x: lax.pbroadcast(x, axis, 0),
        "reduce": lambda x: lax.psum(x, axis),
        "gather": lambda x: lax.all_gather(x, axis, tiled=True),
        # The first block that arrives is the root's.
        "scatter": lambda x: lax.all_to_all(x, axis, 0, 0, tiled=True)[: x.shape[0] // ranks],
        "ppermute": lambda x: lax.ppermute(x, axis, ring),
    }
    return operations[name]
