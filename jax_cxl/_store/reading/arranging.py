"""Puts a part of an array together from pieces of saved shards, on the device with the pieces."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_cxl._store.memory import layout
from jax_cxl._store.trees import leaves


@dataclasses.dataclass(frozen=True)
class Run:
    """Consecutive elements of a saved shard. If `exact`, its pieces contain no other elements.

    If the memory has several devices, there is a piece for each device. It contains the device's
    blocks in all rows of blocks (`stripes.py`) that contain the elements.
    """

    pieces: int
    count: int
    exact: bool


@dataclasses.dataclass(frozen=True)
class Block:
    """Rows of a saved shard that overlap the part. A row is a slice along the first dimension.

    Attributes:
      here: where the rows overlap the part: start and end in the rows, along each dimension.
    """

    runs: tuple[Run, ...]
    shape: tuple[int, ...]
    here: leaves.Index
    there: leaves.Index


@dataclasses.dataclass(frozen=True)
class Plan:
    """How a part of an array is put together: its blocks, in the order of the pieces."""

    shape: tuple[int, ...]
    blocks: tuple[Block, ...]

    @property
    def is_one_piece(self) -> bool:
        """Whether a single piece is the whole part."""
        runs = [run for block in self.blocks for run in block.runs]
        one = len(runs) == 1 and runs[0].pieces == 1 and runs[0].exact
        return one and self.blocks[0].shape == self.shape


@functools.partial(jax.jit, static_argnums=0)
def arrange(
    plan: Plan, places: Sequence[tuple[int, int]], pieces: Sequence[jax.Array]
) -> jax.Array:
    """Returns a part of an array, put together from pieces.

    `places` has a pair for each run: the device that holds the first block of the run's first row
    of blocks, and how many elements of the run's pieces come before the run. The places are not
    part of the plan, a static argument, so that arrays of the same shapes share a compiled program.
    """
    rest, rest_places = iter(pieces), iter(places)
    out = None
    for block in plan.blocks:
        flat = jnp.concatenate(
            [
                _elements(run, *next(rest_places), [next(rest) for _ in range(run.pieces)])
                for run in block.runs
            ]
        )
        common = flat.reshape(block.shape)[tuple(slice(*bounds) for bounds in block.here)]
        if common.shape == plan.shape:
            return common
        if out is None:
            out = jnp.empty(plan.shape, common.dtype)
        out = jax.lax.dynamic_update_slice(out, common, [start for start, _ in block.there])
    assert out is not None
    return out


def _elements(run: Run, device: Any, skip: Any, pieces: list[jax.Array]) -> jax.Array:
    """Returns the elements of a run. A row of blocks begins one device after the previous row."""
    flat = pieces[0]
    if run.pieces > 1:
        size = layout.BLOCK_BYTES // flat.dtype.itemsize
        by_device = jnp.stack([piece.reshape(-1, size) for piece in pieces])
        row, column = np.indices((by_device.shape[1], run.pieces))
        flat = by_device[(device + row + column) % run.pieces, row].reshape(-1)
    return flat if run.exact else jax.lax.dynamic_slice(flat, [skip], [run.count])
