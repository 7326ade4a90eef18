"""Finds out whether all copies of replicated arrays are the same.

Each process multiplies the checksum of each of its copies by a factor, adds up the products, and
writes the sums into its record. The factors of the copies of a shard add up to 0. So the sums of
all processes add up to 0 if the copies are the same. If the copies differ, the total is 0 with a
probability of 2**-64. No process waits for another process.
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple

from jax_cxl._store.memory import checksum, layout
from jax_cxl._store.memory.record import Record
from jax_cxl._store.trees.leaves import Leaf

_WORD = (1 << 64) - 1


class Copy(NamedTuple):
    """A copy of a shard that several devices hold.

    Attributes:
      leaf: number of the leaf.
      shard: number of the shard among the shards of this leaf.
      holder: number of the device among those that hold the shard.
      column: number of the sum to which its checksum contributes. Neighboring leaves share a sum if
        there are more leaves than sums.
      factor: what to multiply its checksum by.
    """

    leaf: int
    shard: int
    holder: int
    column: int
    factor: int


def copies(leaves: Sequence[Leaf], writer: int) -> list[Copy]:
    """Returns the copies that a process has."""
    found = []
    for number, column in _columns(leaves).items():
        for index, shard in enumerate(leaves[number].shards):
            factors = _factors(number, index, len(shard.writers))
            for holder, (process, factor) in enumerate(zip(shard.writers, factors, strict=True)):
                if process == writer and len(shard.writers) > 1:
                    found.append(Copy(number, index, holder, column, factor))
    return found


class Sums:
    """The sums that a process writes into its record, from the checksums of its copies."""

    def __init__(self) -> None:
        self._totals = [0] * layout.REPLICA_SUMS

    def add(self, copy: Copy, value: int) -> None:
        """Adds the checksum of a copy."""
        self._totals[copy.column] = (self._totals[copy.column] + copy.factor * value) & _WORD

    def values(self) -> tuple[int, ...]:
        """Returns the sums."""
        return tuple(self._totals)


def differing(records: Sequence[Record]) -> list[int]:
    """Returns the columns (`Copy.column`) whose copies differ, by the records of all processes."""
    columns = zip(*(record.replicas for record in records), strict=True)
    return [number for number, column in enumerate(columns) if sum(column) & _WORD]


def names(leaves: Sequence[Leaf], columns: Sequence[int]) -> list[str]:
    """Returns the names of the leaves whose copies contribute to these columns."""
    return [leaves[n].name for n, column in _columns(leaves).items() if column in columns]


def _columns(leaves: Sequence[Leaf]) -> dict[int, int]:
    """Returns the column of each leaf that several devices hold."""
    replicated = [
        number
        for number, leaf in enumerate(leaves)
        if any(len(shard.writers) > 1 for shard in leaf.shards)
    ]
    return {
        number: position * layout.REPLICA_SUMS // max(layout.REPLICA_SUMS, len(replicated))
        for position, number in enumerate(replicated)
    }


def _factors(leaf: int, shard: int, count: int) -> list[int]:
    factors = [checksum.of(struct.pack("<3Q", leaf, shard, n)) for n in range(count - 1)]
    return [*factors, -sum(factors) & _WORD]
