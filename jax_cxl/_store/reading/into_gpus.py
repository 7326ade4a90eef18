"""Reads into tensors of PyTorch on GPUs.

Copy engines copy from the memory of the store, which CUDA has registered. While they copy, the GPUs
compute the checksums of what has been copied. The host checks blocks of which a tensor has only a
part. Without the module for CUDA, or if the memory was registered for other GPUs, the host reads
into pinned memory, from which copy engines copy.
"""

import contextlib
import functools
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

from jax_cxl import errors
from jax_cxl._store import frameworks
from jax_cxl._store.memory import layout
from jax_cxl._store.reading import checking, geometry
from jax_cxl._store.reading.restoring import Reader
from jax_cxl._store.trees import leaves, tensors

# How many bytes a GPU checks at a time. Only the last of these checks comes after the copies.
_GROUP_BYTES = 64 << 20


class Part(NamedTuple):
    """A part of an array that goes to a tensor of the same shape and dtype."""

    reader: Reader
    leaf: leaves.Leaf
    bounds: leaves.Index
    tensor: Any


class Copies:
    """Copies that have been started. The tensors are undefined until `finish` has returned."""

    def __init__(self, copied: checking.Copied):
        self._copied = copied
        # Groups of copies: the event after each, and how many whole blocks there are up to it.
        self._groups: list[tuple[Any, int]] = []
        self._ends: dict[Any, Any] = {}  # the last event of each GPU

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
        copied = self._copied
        try:
            # Threads of the host check the memory while the copy engines read it.
            checks = copied.check_on_host()
            self._compare()
            for _ in checks:
                pass  # Raises the error of a thread.
        finally:
            self.wait()
        if copied.on_host:
            section, records = copied.reader.stripes[0].section, copied.reader.records
            if section.version(records[0].number) != records:
                raise errors.StoreError(
                    f"{section.text_of(records[0].version)} was overwritten while it was read,"
                    " because this process was stopped for a time: read again"
                )

    def _compare(self) -> None:
        """Lets the GPUs check groups whose copies have ended, as many at a time as there are."""
        done = 0
        for number, (end, count) in enumerate(self._groups):
            if count <= done:
                continue
            end.synchronize()
            for later, more in self._groups[number + 1 :]:
                if not later.query():
                    break
                count = more
            self._copied.compare(slice(done, count))
            done = count

    def record(self, gpu: Any, stream: Any) -> None:
        """Ends a group, whose copies are all on a stream."""
        end = frameworks.torch().cuda.Event(blocking=True)
        end.record(stream)
        self._groups.append((end, len(self._copied.whole)))
        self._ends[gpu] = end


def start(reader: Reader, parts: Sequence[Part]) -> Copies:
    """Starts copies of parts to their tensors, behind what the program has enqueued so far."""
    if not parts:
        return Copies(checking.Copied(reader, None))
    torch = frameworks.torch()
    section = reader.stripes[0].section
    devices = section.devices
    gpus = {part.tensor.device for part in parts}
    sums = None
    if devices.coherent and not section.geometry.parity:
        with contextlib.suppress(errors.CxlError):  # The memory cannot be registered.
            sums = devices.copies_for(frozenset(gpu.index for gpu in gpus))
    copied = checking.Copied(reader, sums)
    copies = Copies(copied)
    streams = {gpu: _stream(gpu) for gpu in gpus}
    for gpu, stream in streams.items():
        stream.wait_stream(torch.cuda.current_stream(gpu))
    try:
        with torch.inference_mode():
            for gpu, some in itertools.groupby(parts, lambda part: part.tensor.device):
                nbytes = 0
                with torch.cuda.stream(streams[gpu]):
                    for part in some:
                        if sums is None or not _copy(part, copied):
                            _through_host(part)
                        nbytes += part.tensor.nbytes
                        if nbytes >= _GROUP_BYTES:
                            copies.record(gpu, streams[gpu])
                            nbytes = 0
                copies.record(gpu, streams[gpu])
    except BaseException:
        for stream in streams.values():
            stream.synchronize()
        raise
    return copies


def _copy(part: Part, copied: checking.Copied) -> bool:
    """Starts copies from the memory of the store. Returns whether copy engines can copy a part."""
    if part.leaf.local:
        return False
    all_rows = geometry.rows(part.leaf, part.bounds)
    tensors_of_rows = [part.tensor.detach()[geometry.slices(rows.there)] for rows in all_rows]
    if not all(rows.is_whole for rows in all_rows):
        return False
    if not all(tensor.is_contiguous() for tensor in tensors_of_rows):
        return False
    torch = frameworks.torch()
    size = layout.BLOCK_BYTES
    devices = part.reader.stripes[0].section.devices
    source = torch.from_numpy(devices.mapped)
    for rows, tensor in zip(all_rows, tensors_of_rows, strict=True):
        flat = tensor.reshape(-1).view(torch.uint8)
        for each in part.reader.parts_of_rows(part.leaf, rows):
            own = part.reader.stripes[each.writer]
            to = each.start - each.offset
            for blocks in geometry.consecutive(part.reader.changed_blocks(each)):
                block = blocks.start
                for device, offset, count in own.runs(blocks):
                    first, last = each.bytes_in(range(block, block + count))
                    at = devices.core.address(device, offset) - devices.core.base
                    at += first - block * size
                    there = flat[first + to : last + to]
                    there.copy_(source[at : at + last - first], non_blocking=True)
                    block += count
                first, last = each.bytes_in(blocks)
                address = tensor.data_ptr() + first + to
                copied.add(tensor.device.index, each.writer, first, last, address)
    return True


def _through_host(part: Part) -> None:
    """Reads a part into pinned memory of the host, and starts a copy from there."""
    if part.reader.is_unchanged(part.leaf):
        return
    torch = frameworks.torch()
    tensor = part.tensor
    staging = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    part.reader.forgetting().read_same(part.leaf, part.bounds, tensors.array(staging))
    # PyTorch uses the pinned memory again only after the copy.
    tensor.detach().copy_(staging, non_blocking=True)


@functools.cache
def _stream(device: Any) -> Any:
    return frameworks.torch().cuda.Stream(device)
