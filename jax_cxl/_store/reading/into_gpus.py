"""Reads into tensors of PyTorch on GPUs.

Copy engines copy from the memory of the store, which CUDA has registered. Then the GPUs compute the
checksums of the copies. The host checks blocks of which a tensor has only a part, and all blocks if
there is no CUDA module.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from jax_cxl import errors
from jax_cxl._store import frameworks
from jax_cxl._store.memory import layout
from jax_cxl._store.reading import geometry
from jax_cxl._store.reading.restoring import Reader
from jax_cxl._store.trees import leaves, place, tensors

_ALIGN = 16  # of a block whose checksum a GPU computes


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of an array that goes to a tensor.

    Attributes:
      reader: the version.
      leaf: the array.
      index: start and end of the part along each dimension.
      tensor: the tensor, of the same shape and dtype.
    """

    reader: Reader
    leaf: leaves.Leaf
    index: leaves.Index
    tensor: Any


class Copies:
    """Copies that have been started. The tensors are undefined until `finish` has returned.

    Attributes:
      events: for each GPU, what PyTorch's streams can wait for.
    """

    def __init__(self, reader: Reader | None, sums: Any):
        """Notes the version, and the object that computes checksums; None if there is none."""
        self._reader, self._sums = reader, sums
        self.events: list[Any] = []
        # What is checked: by GPU, the writers, numbers and addresses of blocks; and on the host.
        self._on_gpus: dict[int, list[tuple[int, np.ndarray, np.ndarray]]] = {}
        self._on_host: dict[int, set[int]] = {}

    def wait(self) -> None:
        """Waits until the copies have ended, and checks nothing."""
        for event in self.events:
            event.synchronize()

    def finish(self) -> None:
        """Waits until the copies have ended, and checks them.

        Raises:
          StoreError: a block is damaged, or the version was overwritten meanwhile.
        """
        try:
            # The host checks the memory while the copy engines read it.
            for writer, blocks in self._on_host.items():
                self._reader_of().check_blocks(writer, sorted(blocks))
        finally:
            self.wait()
        self._compare()
        if self._on_host:
            reader = self._reader_of()
            section, records = reader.stripes[0].section, reader.records
            if section.version(records[0].number) != records:
                raise errors.StoreError(
                    f"{section.text_of(records[0].version)} was overwritten while it was read,"
                    " because this process was stopped for a time: read again"
                )

    def _reader_of(self) -> Reader:
        assert self._reader is not None
        return self._reader

    def add(self, part: place.Part, blocks: range, gpu: int, address: int) -> None:
        """Notes that consecutive blocks of a part are copied to a tensor at an address."""
        size = layout.BLOCK_BYTES
        end = part.offset + part.end - part.start
        whole = range(max(blocks.start, layout.blocks(part.offset)), min(blocks.stop, end // size))
        first = address + part.start - part.offset + whole.start * size
        if self._sums is None or not whole or first % _ALIGN:
            whole = range(blocks.start, blocks.start)
        else:
            addresses = np.arange(len(whole), dtype=np.int64) * size + first
            self._on_gpus.setdefault(gpu, []).append((part.writer, np.array(whole), addresses))
        if rest := set(blocks) - set(whole):
            self._on_host.setdefault(part.writer, set()).update(rest)

    def _compare(self) -> None:
        """Lets the GPUs compute checksums, and compares them."""
        if not self._on_gpus:
            return
        wanted = [
            (gpu, np.concatenate([addresses for _, _, addresses in of_gpu]).tolist())
            for gpu, of_gpu in self._on_gpus.items()
        ]
        checksums = self._sums.checksums(wanted, layout.BLOCK_BYTES)
        reader = self._reader_of()
        for of_gpu, values in zip(self._on_gpus.values(), checksums, strict=True):
            found = np.array(values, np.uint64)
            for writer, blocks, _ in of_gpu:
                wrong = blocks[found[: len(blocks)] != reader.table(writer)[blocks]]
                if len(wrong):
                    raise reader.stripes[writer].damaged(int(wrong[0]))
                found = found[len(blocks) :]


def start(parts: Sequence[Part]) -> Copies:
    """Starts copies of parts to their tensors, behind what the program has enqueued so far."""
    if not parts:
        return Copies(None, None)
    section = parts[0].reader.stripes[0].section
    devices = section.devices
    direct = devices.coherent and not section.geometry.parity
    sums = None
    if direct:
        try:
            sums = devices.copies_for(frozenset(part.tensor.device.index for part in parts))
        except errors.CxlError:
            direct = False  # CUDA cannot register this memory.
    torch = frameworks.torch()
    copies = Copies(parts[0].reader, sums)
    streams = {part.tensor.device: _stream(part.tensor.device) for part in parts}
    for device, stream in streams.items():
        stream.wait_stream(torch.cuda.current_stream(device))
    try:
        with torch.inference_mode():
            for part in parts:
                with torch.cuda.stream(streams[part.tensor.device]):
                    found = part.reader.contiguous(part.leaf, part.index) if direct else None
                    if found is None or not part.tensor.is_contiguous():
                        _through_host(part)
                    else:
                        _copy(part, found, copies)
    except BaseException:
        for stream in streams.values():
            stream.synchronize()
        raise
    for stream in streams.values():
        event = torch.cuda.Event(blocking=True)
        event.record(stream)
        copies.events.append(event)
    return copies


def _copy(part: Part, found: list[place.Part], copies: Copies) -> None:
    """Starts copies from the memory of the store."""
    torch = frameworks.torch()
    size = layout.BLOCK_BYTES
    flat = part.tensor.detach().reshape(-1).view(torch.uint8)
    gpu, address = part.tensor.device.index, part.tensor.data_ptr()
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
                block += count
            copies.add(each, blocks, gpu, address)


def _through_host(part: Part) -> None:
    """Reads a part into pinned memory of the host, and starts a copy from there."""
    if part.reader.is_unchanged(part.leaf):
        return
    torch = frameworks.torch()
    tensor = part.tensor
    staging = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    part.reader.forgetting().read_into(part.leaf, part.index, tensors.array(staging))
    # PyTorch uses the pinned memory again only after the copy.
    tensor.detach().copy_(staging, non_blocking=True)


@functools.cache
def _stream(device: Any) -> Any:
    """Returns the stream for copies to a GPU."""
    return frameworks.torch().cuda.Stream(device)
