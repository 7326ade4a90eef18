"""Sums the updates of rows that occur several times, in a fixed order."""

import jax
import numpy as np

from jax_cxl._table import sources

# The first updates of each row, up to this many, are added for all rows at once. The other updates
# are added row by row.
_LEVELS = 64


def local(x: object) -> np.ndarray:
    """Returns the part of an array that this process has, in the order of its first dimension.

    Raises:
      ValueError: it is divided along another dimension.
      TypeError: it has a mask.
    """
    if not isinstance(x, jax.Array) or x.is_fully_addressable:
        sources.check_no_mask(x)
        return np.asarray(x)
    shards = {}
    for shard in x.addressable_shards:
        first, *others = shard.index or (slice(None),)
        if any(of.indices(n) != (0, n, 1) for of, n in zip(others, x.shape[1:], strict=True)):
            raise ValueError(
                f"ids and updates that several processes share must be sharded along their first"
                f" axis only, and this array is {x.sharding}: reshard it"
            )
        if shard.replica_id == 0:
            shards[first.indices(x.shape[0])[0] if x.ndim else 0] = np.asarray(shard.data)
    none = np.empty((0, *x.shape[1:]), x.dtype)
    return np.concatenate([none, *(shards[start] for start in sorted(shards))])


def named(ids: np.ndarray, rows: int) -> np.ndarray:
    """Returns ids as int64, from 0 to rows - 1; -1 stands for ids outside of the table."""
    wide = np.where(ids > np.iinfo(np.int64).max, -1, ids) if ids.dtype == np.uint64 else ids
    wide = wide.astype(np.int64)
    wide = np.where((wide < 0) & (ids.dtype != np.uint64), wide + rows, wide)
    return np.where((wide >= 0) & (wide < rows), wide, -1)


def merge(ids: np.ndarray, updates: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the distinct ids, ascending, and the sum of the updates of each id.

    The updates of an id are added to zero one after another, as XLA's scatter does on CPUs. Narrow
    floats are summed in float32.

    Args:
      ids: int64 vector of rows.
      updates: array of shape (len(ids), ...).
    """
    narrow = updates.dtype.itemsize < 4 and not np.issubdtype(updates.dtype, np.integer)
    updates = updates.astype(np.float32) if narrow else updates
    order = np.argsort(ids, kind="stable")
    unique, first, counts = np.unique(ids[order], return_index=True, return_counts=True)
    sums = np.zeros((len(unique), *updates.shape[1:]), updates.dtype)
    for level in range(min(_LEVELS, counts.max(initial=0))):
        groups = np.flatnonzero(counts > level)
        sums[groups] += updates[order[first[groups] + level]]
    for group in np.flatnonzero(counts > _LEVELS):
        start = first[group]
        left = order[start + _LEVELS : start + counts[group]]
        rest = np.concatenate([sums[group : group + 1], updates[left]])
        # Unlike np.sum, accumulate adds one after another.
        sums[group] = np.add.accumulate(rest)[-1]
    return unique, sums
