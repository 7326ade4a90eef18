"""Brings arrays from a store to the devices, ahead of their use."""

import collections
import concurrent.futures
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax

from jax_cxl._store import agreement
from jax_cxl._store.reading import rebuilding
from jax_cxl._store.reading.restoring import Reader
from jax_cxl._store.reading.version import Source
from jax_cxl._tier import copying
from jax_cxl._tier.arrays import Spec

_AHEAD = 2  # Most groups that are being read, and most that are being checked.
_THREADS = 2

# Specs, what GPUs copy of each (None if the host reads the array), and what the host reads.
_Group = tuple[
    Sequence[Spec], Sequence[copying.Source | None], concurrent.futures.Future[list[Any]]
]


def fetch(reader: Reader, specs: Sequence[Spec], writers: Sequence[int]) -> list[Any]:
    """Returns arrays of a version."""
    source = Source(reader, writers, jax.process_index())
    return rebuilding.rebuild([spec.name for spec in specs], [spec.like for spec in specs], source)


def ahead(reader: Reader, groups: Iterable[Sequence[Spec]]) -> Iterator[list[Any]]:
    """Yields the arrays of one group after another, and fetches a few groups ahead of their use.

    The host reads and checks arrays in threads. Arrays that GPUs can copy are copied by a program
    before the program that uses them, and are checked while the next groups are copied.

    The caller owns the arrays that the host has read, and may donate them. It must not donate the
    arrays that GPUs have copied.
    """
    writers = agreement.processes()
    threads = concurrent.futures.ThreadPoolExecutor(_THREADS, "jax_cxl fetch")
    checks: collections.deque[concurrent.futures.Future[None]] = collections.deque()

    def begin(specs: Sequence[Spec]) -> _Group:
        sources = [copying.find(reader, spec) for spec in specs]
        of_host = [spec for spec, source in zip(specs, sources, strict=True) if source is None]
        return specs, sources, threads.submit(fetch, reader, of_host, writers)

    def wait_for_checks(most: int) -> None:
        while len(checks) > most:
            checks.popleft().result()

    def finish(group: _Group) -> list[Any]:
        all_specs, all_sources, read = group
        pairs = zip(all_specs, all_sources, strict=True)
        of_gpus = [(spec, source) for spec, source in pairs if source is not None]
        copies: list[Any] = []
        if of_gpus:
            wait_for_checks(_AHEAD)
            specs, sources = zip(*of_gpus, strict=True)
            copies = copying.start(sources, specs)
            checks.append(threads.submit(copying.check, reader, sources, copies))
        of_host, copied = iter(read.result()), iter(copies)
        return [next(of_host if source is None else copied) for source in all_sources]

    left = collections.deque(groups)
    under_way: collections.deque[_Group] = collections.deque()
    try:
        while left or under_way:
            while left and len(under_way) <= _AHEAD:
                under_way.append(begin(left.popleft()))
            yield finish(under_way.popleft())
        wait_for_checks(0)
    finally:
        threads.shutdown(cancel_futures=True)
