"""Writes this process's part of a version, while the program runs."""

import dataclasses
import functools
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from jax_cxl import errors
from jax_cxl._store import frameworks
from jax_cxl._store.memory import checksum, layout, stripes
from jax_cxl._store.memory.layout import Record
from jax_cxl._store.memory.section import Section
from jax_cxl._store.trees import flatten, leaves, place
from jax_cxl._store.trees.flatten import Description
from jax_cxl._store.writing import device_copies, shard_bytes
from jax_cxl._store.writing.shard_bytes import (
    DeviceBytes,
    HostBytes,
    hold,
    hold_sums,
    is_on_gpu,
    view,
)

if TYPE_CHECKING:
    import jax

    from jax_cxl._store.writing import joining


class Bytes(Protocol):
    """The bytes of a part, in this host's memory or from a file."""

    def read(self, start: int, end: int) -> np.ndarray:
        """Returns some of the bytes. Each call begins where the previous one ended."""


@dataclasses.dataclass(frozen=True)
class Batch:
    """Arrays that are written together.

    Attributes:
      parts: the parts of the arrays that this process writes, each with its bytes, in order. If
        some may be in the memory of GPUs, this is a list. Otherwise it may be an iterator, which
        yields them only once.
      copies: copies of replicated arrays, each with a function that returns its checksum.
    """

    parts: Iterable[tuple[place.Part, Bytes | DeviceBytes]]
    copies: Iterable[tuple[place.Copy, Callable[[], int]]]


@dataclasses.dataclass(frozen=True)
class Save:
    """One save: the part of a version that this process writes.

    Attributes:
      batches: the arrays, in the order of the leaves. The iterator may wait for arrays.
      on_device: whether parts may be in the memory of GPUs.
      old: for the first process, its record of the version that was in the area of this save, or
        None if there was none. The process has already erased this record. None for the other
        processes, whose records are still in the area.
    """

    section: Section
    number: int
    token: int
    version: int
    description: Description
    values: Sequence[Any]
    writer: int
    batches: Iterable[Batch]
    on_device: bool
    old: Record | None = None

    def run(self) -> None:
        """Writes this process's part of the version, and then its record."""
        known = self._known_blocks()
        self._announce(None)
        description = self.description
        directory = b""
        if self.writer == 0:
            directory = description.directory(self.values)
        placement = description.placement(self.section.geometry.blocks_per_row)
        data_blocks = placement.data_blocks(self.writer)
        own = stripes.Stripes(
            self.section,
            self.number,
            self.writer,
            placement.first_row(self.writer),
            data_blocks + layout.table_blocks(data_blocks) + layout.blocks(len(directory)),
        )
        table = np.zeros(data_blocks, np.uint64)
        output = _Output(own, known)
        sums = [0] * layout.REPLICA_SUMS
        batches = _summed(self.batches, sums)
        if self.on_device:
            device_copies.write_data(own, batches, table)
            output.skip(data_blocks)
        else:
            parts = itertools.chain.from_iterable(batch.parts for batch in batches)
            for number, block in enumerate(_blocks(parts)):
                table[number] = checksum.of(block)
                output.write(block, table[number])
        output.append(table)
        output.append(np.frombuffer(directory, np.uint8))
        output.finish()
        self.section.devices.check_paths()
        self._announce(
            Record(
                number=self.number,
                token=self.token,
                version=self.version,
                time=time.time(),
                writers=len(description.writers),
                writer=self.writer,
                first_row=own.first_row,
                data_blocks=data_blocks,
                table_checksum=checksum.of(table),
                directory_bytes=len(directory),
                directory_checksum=checksum.of(directory),
                tree=description.digest,
                section=self.section.entry.identity,
                replicas=tuple(sums),
            )
        )

    def _announce(self, record: Record | None) -> None:
        """Writes the record on all devices, its first word last. For None, clears the first word.

        Other processes look at the first device, unless it is lost. So the first device is written
        last: when they find the record there and go on, this process has written all copies.
        """
        offset = self.section.geometry.record(self.number, self.writer)
        for device in reversed(self.section.geometry.mirrors):
            if record is not None:
                self.section.write(device, offset + 8, record.to_bytes()[8:])
            number = self.number if record is not None else 0
            self.section.store_word(device, offset, number)

    def _known_blocks(self) -> np.ndarray:
        """Returns the checksums of this process's blocks in the area, if this job has written them.

        If another job has written them, the result is empty, because a job that was lost may have
        changed blocks after it wrote its record. The result is also empty if the blocks of this
        process now begin in another row.
        """
        old = self.old
        if old is None and self.writer:
            old = self.section.record(self.number, self.writer)
        if old is None or old.token != self.token or old.writer != self.writer:
            return np.empty(0, np.uint64)
        placement = self.description.placement(self.section.geometry.blocks_per_row)
        if old.first_row != placement.first_row(self.writer):
            return np.empty(0, np.uint64)
        try:
            return stripes.Stripes.of(self.section, old).read_table(old)
        except errors.StoreError:
            return np.empty(0, np.uint64)


def _summed(batches: Iterable[Batch], sums: list[int]) -> Iterator[Batch]:
    """Adds the checksums of each batch's copies to the sums once the batch has been written."""
    for batch in batches:
        yield batch
        for copy, sum_ in batch.copies:
            sums[copy.column] = (sums[copy.column] + copy.factor * sum_()) & place.WORD


def _blocks(parts: Iterable[tuple[place.Part, Any]]) -> Iterator[np.ndarray]:
    """Yields the blocks of parts in this host's memory. The next block may use the same memory."""
    size = layout.BLOCK_BYTES
    block = np.zeros(size, np.uint8)
    at = 0  # in the bytes of this process
    for part, shard in parts:
        # Parts begin at multiples of 64 bytes, so there may be a gap before this part.
        if at < part.offset:
            block[at % size :][: part.offset - at] = 0
            at = part.offset
            if at % size == 0:
                yield block
        done = 0
        while done < part.end - part.start:
            inside = at % size
            piece = shard.read(done, min(done + size - inside, part.end - part.start))
            done, at = done + len(piece), at + len(piece)
            if len(piece) == size:
                yield piece  # A whole block goes directly from the array into the memory.
                continue
            block[inside : inside + len(piece)] = piece
            if at % size == 0:
                yield block
    if at % size:
        block[at % size :] = 0
        yield block


class _Output:
    """Writes blocks one after the other, and the parity of each row.

    It does not write blocks that are in the area already. `known` has the checksums of the blocks
    in the area.
    """

    def __init__(self, own: stripes.Stripes, known: np.ndarray):
        self._own = own
        self._known = known
        self._next = 0
        self._changed = False  # whether a block of this row has changed
        with_parity = own.section.geometry.parity
        self._parity = np.zeros(layout.BLOCK_BYTES, np.uint8) if with_parity else None

    def write(self, block: np.ndarray, sum_: int | None = None) -> None:
        """Writes a block, unless the area has a block with the checksum `sum_` there already."""
        if sum_ is None or self._next >= len(self._known) or self._known[self._next] != sum_:
            self._changed = True
            self._own.write(self._next, block)
        self._count(block)

    def skip(self, count: int) -> None:
        """Adds blocks to the parity, but does not write them, because they are written already."""
        if self._parity is None:  # There is nothing to compute from them.
            self._next += count
            return
        for block in range(self._next, self._next + count):
            self._changed = True
            self._count(device_copies.view(self._own, block))

    def _count(self, block: np.ndarray) -> None:
        if self._parity is not None:
            np.bitwise_xor(self._parity, block, out=self._parity)
        self._next += 1
        if self._next % self._own.section.geometry.blocks_per_row == 0:
            self._end_row()

    def append(self, data: np.ndarray) -> None:
        """Writes data, from the start of the next block on. Zeros fill the last block."""
        data = data.view(np.uint8)
        for start in range(0, len(data), layout.BLOCK_BYTES):
            block = np.zeros(layout.BLOCK_BYTES, np.uint8)
            piece = data[start : start + layout.BLOCK_BYTES]
            block[: len(piece)] = piece
            self.write(block)

    def finish(self) -> None:
        if self._next % self._own.section.geometry.blocks_per_row:
            self._end_row()

    def _end_row(self) -> None:
        if self._parity is not None:
            row = (self._next - 1) // self._own.section.geometry.blocks_per_row
            if self._changed:
                device, offset = self._own.parity_device(row), self._own.offset(row)
                self._own.section.write(device, offset, self._parity)
            self._parity[:] = 0
        self._changed = False


_ITSELF = -1  # Stands for the array itself in place of its part on a device.


class Selection:
    """What a process writes of a tree. It is the same for all trees with one description."""

    def __init__(self, flat: flatten.Flat, placement: place.Placement, writer: int):
        """Finds the parts and copies of `writer`, a position among the processes that save."""
        of_leaves = flat.description.leaves
        self.on_device = any(map(is_on_gpu, flat.arrays))
        # The parts of each leaf, each with the position of its device among this process's devices.
        self._parts: dict[int, list[tuple[place.Part, int]]] = {}
        self._copies: dict[int, list[tuple[place.Copy, int]]] = {}
        wanted: Any = (part for part in placement.parts if part.writer == writer)
        for what in (*wanted, *place.copies(of_leaves, writer)):
            leaf = of_leaves[what.leaf]
            index = leaf.shards[what.shard].index
            position = _position(flat.arrays[what.leaf], index[leaf.local :], what.holder)
            into: Any = self._parts if isinstance(what, place.Part) else self._copies
            into.setdefault(what.leaf, []).append((what, position))
        self._chosen: _Chosen | None = None  # by the last call of `hold`
        self._joiner: joining.Joiner | None = None  # of arrays that were chosen twice

    def hold(self, arrays: Mapping[int, Any], copy: bool, owned: bool = False) -> Batch:
        """Returns a batch of some leaves, which keeps their bytes as `shard_bytes.hold` does."""
        numbers = sorted(arrays)
        is_known = self._chosen is not None and self._chosen.leaves == numbers
        if self._chosen is None or not is_known:
            self._chosen, self._joiner = self._choose(numbers), None
        parts, copies = self._chosen.parts, self._chosen.copies
        if self.on_device:
            held = [_shard(arrays, *shard) for shard in self._chosen.shards]
            ranges = [(held[shard], part.start, part.end) for part, shard in parts]
            sums = hold_sums([held[shard] for _, shard in copies])
            return Batch(
                list(zip((part for part, _ in parts), hold(ranges, copy, owned), strict=True)),
                list(zip((of for of, _ in copies), sums, strict=True)),
            )
        views = self._views(arrays)
        many = len(self._chosen.shards) >= shard_bytes.FEWEST_JOINED
        if is_known and many and self._joiner is None and frameworks.jax():
            from jax_cxl._store.writing import joining

            # This is the second save of arrays like these, so more will follow.
            self._joiner = joining.Joiner(arrays, self._chosen.shards)
        # These are generators. So the objects, of which there may be many, are made by the thread
        # that writes the parts.
        return Batch(
            ((part, HostBytes(views[shard], part.start, part.end)) for part, shard in parts),
            (
                (of, HostBytes(views[shard], 0, views[shard].nbytes).checksum)
                for of, shard in copies
            ),
        )

    def _views(self, arrays: Mapping[int, Any]) -> list[np.ndarray]:
        assert self._chosen is not None
        views: list[Any] = [None] * len(self._chosen.shards)
        if self._joiner is not None:
            self._joiner.join(arrays, views)
        for number, shard in enumerate(self._chosen.shards):
            if views[number] is None:
                views[number] = view(_shard(arrays, *shard))
        return views

    def _choose(self, numbers: list[int]) -> "_Chosen":
        shards: dict[tuple[int, int], int] = {}

        def of(found: Mapping[int, list[tuple[Any, int]]]) -> list[tuple[Any, int]]:
            return [
                (what, shards.setdefault((leaf, position), len(shards)))
                for leaf in numbers
                for what, position in found.get(leaf, ())
            ]

        parts, copies = of(self._parts), of(self._copies)
        return _Chosen(numbers, list(shards), parts, copies)


@dataclasses.dataclass(frozen=True)
class _Chosen:
    """What a process writes of some leaves: parts and copies, each with an index in `shards`.

    A shard is given by the number of its leaf and the position of its device.
    """

    leaves: list[int]
    shards: list[tuple[int, int]]
    parts: list[tuple[place.Part, int]]
    copies: list[tuple[place.Copy, int]]


def _shard(arrays: Mapping[int, Any], leaf: int, position: int) -> Any:
    """Returns the part of an array that a device of this process has, as an array."""
    array = arrays[leaf]
    if position == _ITSELF:
        return array
    from jax_cxl import _compat

    return _compat.arrays.of_devices(array)[position]


def _position(array: Any, index: leaves.Index, holder: int) -> int:
    """Returns the position, in JAX's order, of a device of this process that holds a shard."""
    if not hasattr(array, "sharding"):
        return _ITSELF
    holding, positions, itself = _holders(array.sharding, array.shape)
    # NumPy can view an array on one CPU device directly. There is no need to get the array of the
    # device from JAX.
    return _ITSELF if itself and not is_on_gpu(array) else positions[holding[index][holder]]


@functools.lru_cache(1024)
def _holders(
    sharding: "jax.sharding.Sharding", shape: tuple[int, ...]
) -> "tuple[dict[leaves.Index, list[jax.Device]], dict[jax.Device, int], bool]":
    """Returns, for each shard, the devices that hold it, in the order of `Shard.writers`.

    Also returns the position of each device of this process, in JAX's order of these devices, and
    whether the whole array is on one device of this process.
    """
    holders: dict[leaves.Index, list[jax.Device]] = {}
    for device, slices in sharding.devices_indices_map(shape).items():
        holders.setdefault(leaves.index_of(slices, shape), []).append(device)
    own = sharding.addressable_devices_indices_map(shape)
    positions = {device: position for position, device in enumerate(own)}
    return holders, positions, len(own) == 1 and len(holders) == 1
