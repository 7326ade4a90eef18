"""Brings arrays from a store to the devices, ahead of their use."""

import collections
import concurrent.futures
from collections.abc import Iterator, Sequence
from typing import Any

import jax

from jax_cxl._store import agreement
from jax_cxl._store.reading import rebuilding
from jax_cxl._store.reading.restoring import Reader
from jax_cxl._tier.arrays import Spec

_AHEAD = 2  # Groups that are fetched while another group is updated.
_THREADS = 2  # One group is copied while the copies of another are checked.


def fetch(reader: Reader, specs: Sequence[Spec], writers: Sequence[int]) -> list[Any]:
    """Returns arrays of a version.

    Args:
      reader: the version.
      specs: the arrays.
      writers: indices of the processes of the job.

    Raises:
      StoreError: one is damaged, or the version does not have it.
    """
    wanted = rebuilding.Wanted(
        [spec.name for spec in specs],
        [spec.like for spec in specs],
        jax.tree.structure([0] * len(specs)),
    )
    made: list[Any] = rebuilding.rebuild(wanted, reader, writers, jax.process_index())
    return made


class Ahead:
    """Fetches groups of arrays one after another, a few groups ahead of their use."""

    def __init__(self, reader: Reader, groups: Sequence[Sequence[Spec]]):
        """Begins with the first groups."""
        self._reader = reader
        self._writers = agreement.processes()
        self._left = collections.deque(groups)
        self._threads = concurrent.futures.ThreadPoolExecutor(_THREADS, "jax_cxl fetch")
        self._under_way: collections.deque[concurrent.futures.Future[list[Any]]] = (
            collections.deque()
        )

    def __iter__(self) -> Iterator[list[Any]]:
        """Yields the arrays of each group, which the caller owns."""
        try:
            while self._left or self._under_way:
                while self._left and len(self._under_way) <= _AHEAD:
                    specs = self._left.popleft()
                    self._under_way.append(
                        self._threads.submit(fetch, self._reader, specs, self._writers)
                    )
                yield self._under_way.popleft().result()
        finally:
            self._left.clear()
            self._threads.shutdown(cancel_futures=True)
