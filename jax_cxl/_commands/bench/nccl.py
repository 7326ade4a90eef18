"""Collectives of `jax.lax` between GPUs, which NCCL runs.

`jax.lax` has no gather, scatter or reduce to one rank. The benchmark measures the collective of all
ranks that a user would write instead. It moves more data than necessary.
"""

from collections.abc import Callable
from typing import Any

from jax import lax


def prepare(name: str, ranks: int, axis: str) -> Callable[[], Callable[[Any], Any]] | None:
    """Returns a function that prepares an operation, None if NCCL has nothing like it.

    Args:
      name: name of the operation.
      ranks: number of ranks.
      axis: name of the mesh axis.
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
        # The first block that arrives comes from the root.
        "scatter": lambda x: lax.all_to_all(x, axis, 0, 0, tiled=True)[: x.shape[0] // ranks],
        "ppermute": lambda x: lax.ppermute(x, axis, ring),
    }
    operation = operations.get(name)
    return None if operation is None else lambda: operation
