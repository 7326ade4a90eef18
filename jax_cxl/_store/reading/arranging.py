"""Makes a part of an array of pieces of saved shards, on the device of the pieces."""

import dataclasses
import functools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from jax_cxl._store.trees import leaves


@dataclasses.dataclass(frozen=True)
class Block:
    """Rows of a saved shard, some of which have bytes of the part.

    Attributes:
      pieces: how many pieces make the rows, one after the other.
      skip: elements before the rows.
      shape: shape of the rows.
      here: start and end of the common part in the rows, along each dimension.
      there: start and end of the common part in the part to make.
    """

    pieces: int
    skip: int
    shape: tuple[int, ...]
    here: leaves.Index
    there: leaves.Index


@dataclasses.dataclass(frozen=True)
class Plan:
    """How to make a part.

    Attributes:
      shape: shape of the part.
      blocks: where its elements are, in the order of the pieces.
    """

    shape: tuple[int, ...]
    blocks: tuple[Block, ...]

    @property
    def is_one_piece(self) -> bool:
        """Whether a piece is the part."""
        first = self.blocks[0]
        return (len(self.blocks), first.pieces, first.skip) == (1, 1, 0) and (
            first.shape == self.shape
        )


@functools.partial(jax.jit, static_argnums=0)
def arrange(plan: Plan, pieces: Sequence[jax.Array]) -> jax.Array:
    """Returns the part that the pieces, arrays of one dimension, make."""
    rest = iter(pieces)
    out = None
    for block in plan.blocks:
        flat = jnp.concatenate([next(rest) for _ in range(block.pieces)])
        rows = flat[block.skip : block.skip + math.prod(block.shape)].reshape(block.shape)
        common = rows[tuple(slice(*bounds) for bounds in block.here)]
        if common.shape == plan.shape:
            return common
        if out is None:
            out = jnp.empty(plan.shape, common.dtype)
        starts = [start for start, _ in block.there]
        out = jax.lax.dynamic_update_slice(out, common, starts)
    assert out is not None
    return out
