"""Reads into tensors of PyTorch on GPUs.

Copy engines copy from the memory of the store, which CUDA has registered. While they copy, the GPUs
compute the checksums of what has been copied. The host checks blocks of which a tensor has only a
part, and all blocks if the memory was registered for other GPUs. Without the module for CUDA, the
host reads into pinned memory, from which copy engines copy.
"""

import collections
import functools
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jax_cxl import errors
from jax_cxl._store import frameworks
from jax_cxl._store.memory import layout
from jax_cxl._store.reading import geometry
from jax_cxl._store.reading.restoring import Reader
from jax_cxl._store.trees import leaves, place, tensors

_ALIGN = 16  # of a block whose checksum a GPU computes
# How many bytes a GPU checks at a time. Only the last of these checks comes after the copies.
_GROUP_BYTES = 64 << 20


class Part(NamedTuple):
    """A part of an array that goes to a tensor of the same shape and dtype."""

    reader: Reader
    leaf: leaves.Leaf
    bounds: leaves.Index
    tensor: Any


class _Group:
    """Copies to a GPU that are checked together, after the event `end`."""

    def __init__(self, gpu: Any):
        self._gpu, self.nbytes = gpu, 0
        self.end = frameworks.torch().cuda.Event(blocking=True)
        self._copied: list[tuple[int, np.ndarray, np.ndarray]] = []

    def add(self, writer: int, blocks: range, first: int) -> None:
        """Notes that blocks of a writer are copied, the first one to an address."""
        addresses = np.arange(len(blocks), dtype=np.int64) * layout.BLOCK_BYTES + first
        self._copied.append((writer, np.array(blocks), addresses))

    @property
    def is_empty(self) -> bool:
        return not self._copied

    def of_gpu(self) -> tuple[int, list[int]]:
        """Returns the GPU, and the addresses of all blocks."""
        return self._gpu.index, np.concatenate([at for _, _, at in self._copied]).tolist()

    def compare(self, reader: Reader, values: Sequence[int]) -> None:
        """Compares checksums of all blocks with those of a version."""
        found = np.array(values, np.uint64)
        for writer, blocks, _ in self._copied:
            reader.compare(writer, blocks, found[: len(blocks)])
            found = found[len(blocks) :]


class Copies:
    """Copies that have been started. The tensors are undefined until `finish` has returned."""

    def __init__(self, reader: Reader | None, sums: Any):
        """Notes the version, and the object that computes checksums; None if there is none."""
        self._reader, self._sums = reader, sums
        self._groups: list[_Group] = []
        self._ends: dict[Any, Any] = {}  # events, by GPU
        self._on_host: dict[int, set[int]] = {}  # what the host checks: blocks by writer

    def let_streams_wait(self) -> None:
        """Lets PyTorch's current streams wait until the copies have ended."""
        for gpu, end in self._ends.items():
            frameworks.torch().cuda.current_stream(gpu).wait_event(end)

    def wait(self) -> None:
        """Waits until the copies have ended, and checks nothing."""
        for end in self._ends.values():
            end.synchronize()

    def finish(self) -> None:
        """Waits until the copies have ended, and checks them."""
        reader = self._reader
        if reader is None:
            return
        try:
            # Threads of the host check the memory while the copy engines read it.
            checks = [reader.checks_of(of, sorted(some)) for of, some in self._on_host.items()]
            self._compare(reader)
            for _ in itertools.chain.from_iterable(checks):
                pass  # Raises the error of a thread.
        finally:
            self.wait()
        if self._on_host:
            section, records = reader.stripes[0].section, reader.records
            if section.version(records[0].number) != records:
                raise errors.StoreError(
                    f"{section.text_of(records[0].version)} was overwritten while it was read,"
                    " because this process was stopped for a time: read again"
                )

    def _compare(self, reader: Reader) -> None:
        """Lets the GPUs compute checksums of groups whose copies have ended, and compares them."""
        waiting = collections.deque(group for group in self._groups if not group.is_empty)
        while waiting:
            waiting[0].end.synchronize()
            ended = [waiting.popleft()]
            while waiting and waiting[0].end.query():
                ended.append(waiting.popleft())
            wanted = [group.of_gpu() for group in ended]
            checksums = self._sums.checksums(wanted, layout.BLOCK_BYTES)
            for group, values in zip(ended, checksums, strict=True):
                group.compare(reader, values)

    def add(self, part: place.Part, blocks: range, group: _Group, address: int) -> None:
        """Notes that consecutive blocks of a part are copied to a tensor at an address."""
        size = layout.BLOCK_BYTES
        end = part.offset + part.end - part.start
        whole = range(max(blocks.start, layout.blocks(part.offset)), min(blocks.stop, end // size))
        first = address + part.start - part.offset + whole.start * size
        if self._sums is None or not whole or first % _ALIGN:
            self._on_host.setdefault(part.writer, set()).update(blocks)
            return
        group.add(part.writer, whole, first)
        edges = *range(blocks.start, whole.start), *range(whole.stop, blocks.stop)
        self._on_host.setdefault(part.writer, set()).update(edges)

    def record(self, group: _Group, gpu: Any, stream: Any) -> None:
        """Ends a group, whose copies are all on a stream."""
        group.end.record(stream)
        self._groups.append(group)
        self._ends[gpu] = group.end


def start(parts: Sequence[Part]) -> Copies:
    """Starts copies of parts to their tensors, behind what the program has enqueued so far."""
    if not parts:
        return Copies(None, None)
    torch = frameworks.torch()
    section = parts[0].reader.stripes[0].section
    devices = section.devices
    direct = devices.coherent and not section.geometry.parity
    gpus = {part.tensor.device for part in parts}
    sums = None
    if direct:
        try:
            sums = devices.copies_for(frozenset(gpu.index for gpu in gpus))
        except errors.CxlError:
            direct = False  # The memory cannot be registered.
    copies = Copies(parts[0].reader, sums)
    streams = {gpu: _stream(gpu) for gpu in gpus}
    groups = {gpu: _Group(gpu) for gpu in gpus}
    for gpu, stream in streams.items():
        stream.wait_stream(torch.cuda.current_stream(gpu))
    try:
        with torch.inference_mode():
            for gpu, some in itertools.groupby(parts, lambda part: part.tensor.device):
                with torch.cuda.stream(streams[gpu]):
                    for part in some:
                        if not (direct and _copy(part, groups[gpu], copies)):
                            _through_host(part)
                        if groups[gpu].nbytes >= _GROUP_BYTES:
                            copies.record(groups[gpu], gpu, streams[gpu])
                            groups[gpu] = _Group(gpu)
        for gpu, group in groups.items():
            copies.record(group, gpu, streams[gpu])
    except BaseException:
        for stream in streams.values():
            stream.synchronize()
        raise
    return copies


def _copy(part: Part, group: _Group, copies: Copies) -> bool:
    """Starts copies from the memory of the store. Returns whether copy engines can copy a part."""
    found = part.reader.contiguous(part.leaf, part.bounds)
    if found is None or not part.tensor.is_contiguous():
        return False
    torch = frameworks.torch()
    size = layout.BLOCK_BYTES
    flat = part.tensor.detach().reshape(-1).view(torch.uint8)
    address = part.tensor.data_ptr()
    devices = part.reader.stripes[0].section.devices
    source = torch.from_numpy(devices.mapped)
    for each in found:
        own = part.reader.stripes[each.writer]
        end = each.offset + each.end - each.start
        for blocks in geometry.consecutive(part.reader.changed_blocks(each)):
            block = blocks.start
            for device, offset, count in own.runs(blocks):
                first, last = max(each.offset, block * size), min(end, (block + count) * size)
                at = devices.core.address(device, offset) - devices.core.base + first - block * size
                to = each.start + first - each.offset
                there = flat[to : to + last - first]
                there.copy_(source[at : at + last - first], non_blocking=True)
                group.nbytes += last - first
                block += count
            copies.add(each, blocks, group, address)
    return True


def _through_host(part: Part) -> None:
    """Reads a part into pinned memory of the host, and starts a copy from there."""
    if part.reader.is_unchanged(part.leaf):
        return
    torch = frameworks.torch()
    tensor = part.tensor
    staging = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    part.reader.forgetting().read_into(part.leaf, part.bounds, tensors.array(staging))
    # PyTorch uses the pinned memory again only after the copy.
    tensor.detach().copy_(staging, non_blocking=True)


@functools.cache
def _stream(device: Any) -> Any:
    return frameworks.torch().cuda.Stream(device)
