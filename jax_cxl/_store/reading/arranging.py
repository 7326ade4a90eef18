"""Puts a part of an array together from pieces of saved shards, on the device with the pieces."""

import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from jax_cxl._store.trees import leaves


@dataclasses.dataclass(frozen=True)
class Block:
    """Rows of a saved shard that overlap the part. A row is a slice along the first dimension.

    Attributes:
      counts: how many elements of the rows come from each piece.
      here: where the rows overlap the part: start and end in the rows, along each dimension.
    """

    counts: tuple[int, ...]
    shape: tuple[int, ...]
    here: leaves.Index
    there: leaves.Index


@dataclasses.dataclass(frozen=True)
class Plan:
    """How a part of an array is put together: its blocks, in the order of the pieces."""

    shape: tuple[int, ...]
    blocks: tuple[Block, ...]


@functools.partial(jax.jit, static_argnums=0)
def arrange(plan: Plan, skips: Sequence[int], pieces: Sequence[jax.Array]) -> jax.Array:
    """Returns a part of an array, put together from pieces.

    `skips` has for each piece how many elements come before those of the plan. The skips are not
    part of the plan, a static argument, so that arrays of the same shapes share a compiled program.
    """
    left = iter(zip(skips, pieces, strict=True))
    out = jnp.empty(plan.shape, pieces[0].dtype)
    for block in plan.blocks:
        runs = [
            jax.lax.dynamic_slice(piece, [skip], [count])
            for count, (skip, piece) in zip(block.counts, left, strict=False)
        ]
        rows = jnp.concatenate(runs).reshape(block.shape)
        common = rows[tuple(slice(*bounds) for bounds in block.here)]
        if common.shape == plan.shape:
            return common
        out = jax.lax.dynamic_update_slice(out, common, [start for start, _ in block.there])
    return out
