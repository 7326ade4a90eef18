"""Checks what GPUs have copied: whole blocks on the GPU, other blocks in the memory.

A block of which only a part was copied is checked in the memory after the copy. So a change of such
a block before the copy raises an error, too.
"""

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

from jax_cxl._store.memory import layout
from jax_cxl._store.reading import geometry
from jax_cxl._store.reading.restoring import Reader

_ALIGN = 16  # of a block whose checksum a GPU computes


class _Blocks(NamedTuple):
    """Consecutive blocks of a writer that were copied to a GPU, the first one to an address."""

    gpu: int
    writer: int
    numbers: range
    address: int


class Copied:
    """Copies of bytes of a version.

    Attributes:
      whole: blocks that GPUs check.
      on_host: blocks that the host checks, by writer.
    """

    def __init__(self, reader: Reader, sums: Any):
        """Begins with no copies; `sums` computes checksums on GPUs."""
        self.reader, self._sums = reader, sums
        self.whole: list[_Blocks] = []
        self.on_host: dict[int, set[int]] = {}

    def add(self, gpu: int, writer: int, start: int, end: int, address: int) -> None:
        """Notes that a writer's bytes from `start` to `end` are copied to an address of a GPU."""
        whole, edges = geometry.whole_blocks(start, end)
        first = address - start + whole.start * layout.BLOCK_BYTES
        if whole and first % _ALIGN == 0:
            self.whole.append(_Blocks(gpu, writer, whole, first))
        else:
            edges.update(whole)
        self.on_host.setdefault(writer, set()).update(edges)

    def compare(self, some: slice) -> None:
        """Compares the checksums of `some` of the whole blocks, whose copies have ended."""
        by_gpu: dict[int, list[_Blocks]] = {}
        for of in self.whole[some]:
            by_gpu.setdefault(of.gpu, []).append(of)
        size = layout.BLOCK_BYTES
        wanted = [
            (gpu, [of.address + n * size for of in blocks for n in range(len(of.numbers))])
            for gpu, blocks in by_gpu.items()
        ]
        checksums = self._sums.checksums(wanted, size) if wanted else []
        for blocks, found in zip(by_gpu.values(), checksums, strict=True):
            values = iter(found)
            for of in blocks:
                own = list(itertools.islice(values, len(of.numbers)))
                self.reader.compare(of.writer, of.numbers, own)

    def check_on_host(self) -> Iterator[None]:
        """Starts the checks of the other blocks. The result ends with the last check."""
        checks = [self.reader.checks_of(of, sorted(some)) for of, some in self.on_host.items()]
        return itertools.chain.from_iterable(checks)
