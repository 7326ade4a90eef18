"""Reads the leaves of a version, as a process wants them."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from jax_cxl._store.reading.restoring import MisfitError, Reader
from jax_cxl._store.reading.reusing import Arrays
from jax_cxl._store.trees import leaves


def check_fits(leaf: leaves.Leaf, like: Any) -> None:
    """Checks shape and dtype of a leaf."""
    if like.shape != leaf.shape:
        raise MisfitError(
            f"{leaf.name} was saved with shape {leaf.shape}, and `like` has {like.shape}: change"
            " `like`"
        )
    if like.dtype != leaves.dtype_of(leaf.dtype):
        raise MisfitError(
            f"{leaf.name} was saved as {leaf.dtype}, and `like` has {like.dtype}: change `like`"
        )


@dataclasses.dataclass(frozen=True)
class Source:
    """Reads a leaf for process `own`, one of the `writers`, for the tree that it builds."""

    reader: Reader
    leaf: leaves.Leaf
    writers: Sequence[int]
    own: int
    name: str
    previous: Arrays | None

    def whole(self) -> np.ndarray:
        """Returns the whole array."""
        into = None
        if self.previous is not None and not self.leaf.local:
            into = self.previous.into(self.name, self.reader, self.leaf)
        return self.part(tuple((0, n) for n in self.leaf.shape), True, into)

    def part(
        self, index: leaves.Index, for_this_process: bool, into: np.ndarray | None = None
    ) -> np.ndarray:
        """Returns a part of the array, which may be for this process alone."""
        if not self.leaf.local:
            return self.reader.read(self.leaf, index, into)
        saved_by = len(self.reader.writers)
        if for_this_process and saved_by == len(self.writers):
            return self.reader.read_local(self.leaf, index, self.writers.index(self.own))
        return self.reader.read_same(self.leaf, index)
