"""Brings arrays from a store to the devices, ahead of their use."""

import collections
import concurrent.futures
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import jax

from jax_cxl._store import agreement
from jax_cxl._store.reading import rebuilding
from jax_cxl._store.reading.restoring import Reader
from jax_cxl._tier import copying
from jax_cxl._tier.arrays import Spec

_AHEAD = 2  # Most groups that are being read, and most that are being checked.
_THREADS = 2


def fetch(reader: Reader, specs: Sequence[Spec], writers: Sequence[int]) -> list[Any]:
    """Returns arrays of a version."""
    wanted = rebuilding.Wanted(
        [spec.name for spec in specs],
        [spec.like for spec in specs],
        jax.tree.structure([0] * len(specs)),
    )
    made: list[Any] = rebuilding.rebuild(wanted, reader, writers, jax.process_index())
    return made


class Ahead:
    """Fetches groups of arrays one after another, a few groups ahead of their use.

    The host reads and checks arrays in threads. Arrays that GPUs can copy are copied by a program
    before the program that uses them, and are checked while the next groups are copied.
    """

    def __init__(self, reader: Reader, groups: Sequence[Sequence[Spec]]):
        """Prepares the fetch. The iteration begins it."""
        self._reader = reader
        self._writers = agreement.processes()
        self._left = collections.deque(groups)
        self._threads = concurrent.futures.ThreadPoolExecutor(_THREADS, "jax_cxl fetch")
        self._under_way: collections.deque[_Group] = collections.deque()
        self._checks: collections.deque[concurrent.futures.Future[None]] = collections.deque()

    def __iter__(self) -> Iterator[list[Any]]:
        """Yields the arrays of each group.

        The caller owns the arrays that the host has read, and may donate them. It must not donate
        the arrays that GPUs have copied.
        """
        try:
            while self._left or self._under_way:
                while self._left and len(self._under_way) <= _AHEAD:
                    self._under_way.append(self._begin(self._left.popleft()))
                yield self._finish(self._under_way.popleft())
            self._wait_for_checks(0)
        finally:
            self._left.clear()
            self._threads.shutdown(cancel_futures=True)

    def _begin(self, specs: Sequence[Spec]) -> "_Group":
        sources = [copying.find(self._reader, spec) for spec in specs]
        of_host = [spec for spec, source in zip(specs, sources, strict=True) if source is None]
        read = self._threads.submit(fetch, self._reader, of_host, self._writers)
        return _Group(specs, sources, read)

    def _finish(self, group: "_Group") -> list[Any]:
        """Returns the arrays of a group, some of which GPUs are still copying."""
        of_gpus = [
            (spec, source)
            for spec, source in zip(group.specs, group.sources, strict=True)
            if source is not None
        ]
        copies: list[Any] = []
        if of_gpus:
            self._wait_for_checks(_AHEAD)
            specs, sources = zip(*of_gpus, strict=True)
            copies = copying.start(sources, specs)
            check = self._threads.submit(copying.check, self._reader, sources, copies)
            self._checks.append(check)
        read, copied = iter(group.read.result()), iter(copies)
        return [next(read if source is None else copied) for source in group.sources]

    def _wait_for_checks(self, most: int) -> None:
        """Waits until at most `most` groups remain to be checked."""
        while len(self._checks) > most:
            self._checks.popleft().result()


@dataclasses.dataclass(frozen=True)
class _Group:
    """A group of arrays that is being fetched. A source is None if the host reads the array."""

    specs: Sequence[Spec]
    sources: Sequence[copying.Source | None]
    read: "concurrent.futures.Future[list[Any]]"
