"""Sums the updates of rows that occur several times, in a fixed order."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_cxl._table import sources

# The first updates of each row, up to this many, are added for all rows at once. The other updates
# are added row by row.
_LEVELS = 64


def local(x: object) -> np.ndarray:
    """Returns the part of an array that this process has, in the order of its first dimension."""
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
    # As int64, a large uint64 would be a negative id, which counts from the end.
    wide = np.minimum(ids, np.uint64(np.iinfo(np.int64).max)) if ids.dtype == np.uint64 else ids
    wide = wide.astype(np.int64)
    wide = np.where(wide < 0, wide + rows, wide)
    return np.where((wide >= 0) & (wide < rows), wide, -1)


def widened(dtype: np.dtype) -> np.dtype:
    """Returns float32 for narrower floats, int8 for narrower integers, else the same dtype."""
    if jnp.issubdtype(dtype, np.floating) and dtype.itemsize < 4:
        return np.dtype(np.float32)
    # JAX does not promote them.
    narrow = jnp.issubdtype(dtype, np.integer) and jnp.iinfo(dtype).bits < 8
    return np.dtype(np.int8) if narrow else dtype


def as_jax(x: np.ndarray) -> np.ndarray:
    """Converts an array to the dtype that it has in JAX. Without x64, this has 32 bits at most."""
    return x.astype(jax.dtypes.canonicalize_dtype(x.dtype), copy=False)


def converted(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Converts as XLA does: NaN to the integer 0, and numbers that are too large to the limits."""
    if np.issubdtype(x.dtype, np.complexfloating) and not jnp.issubdtype(dtype, np.complexfloating):
        x = (x != 0) if dtype == np.bool_ else x.real
    if not (jnp.issubdtype(x.dtype, np.floating) and jnp.issubdtype(dtype, np.integer)):
        return x.astype(dtype)
    limits = jnp.iinfo(dtype)
    with np.errstate(invalid="ignore"):
        out = np.where(np.isnan(x), 0, x).astype(dtype)
    out[x >= int(limits.max)] = limits.max
    out[x <= int(limits.min)] = limits.min
    return out


def merge(ids: np.ndarray, updates: np.ndarray, of_rows: Any) -> tuple[np.ndarray, np.ndarray]:
    """Returns the distinct ids, ascending, and the sum of the updates of each id.

    The updates of an id are added to zero one after another, as XLA's scatter does on CPUs. They
    are added in the dtype to which JAX promotes those of rows and updates, after `widened`.
    """
    wide = jnp.promote_types(widened(np.dtype(of_rows)), widened(updates.dtype))
    updates = updates.astype(wide)
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
