"""Repairs lost paths and damaged blocks from parity."""

import dataclasses
import logging
from collections.abc import Callable

from jax_cxl import errors
from jax_cxl._snapshots import examining, layout, restoring, superblocks, validity
from jax_cxl._snapshots.memory import Memory


@dataclasses.dataclass(frozen=True)
class Repaired:
    """What a repair has done.

    Attributes:
      written: how many blocks, records and superblocks this process has written.
      damaged: the steps of snapshots that are too damaged for parity.
    """

    written: int
    damaged: tuple[int, ...]


def repair(
    memory: Memory,
    last: int,
    share: int,
    shares: int,
    gather: Callable[[list[int]], list[tuple[int, ...]]],
) -> Repaired:
    """Repairs the valid snapshots, and gives blank devices their superblocks.

    All processes call it. No process saves at the same time.

    Args:
      memory: the memory of the snapshots, opened for a repair. It has no blank devices afterwards.
      last: number of the last save, the same on all processes.
      share: number of this process.
      shares: how many processes take part.
      gather: returns the values of all processes, after all processes have called it.

    Raises:
      SnapshotError: the memory has no parity.
    """
    damaged = superblocks.damaged(memory) if share == 0 else []
    for device in sorted({device for device, _ in damaged}):
        superblocks.write(memory.core, memory.geometry.keep, memory.geometry.parity, [device])
    written = len(damaged)
    if not memory.geometry.parity:
        if any(told for (told,) in gather([written])):
            return Repaired(written, ())
        raise errors.SnapshotError(
            f"{memory.where!r} has no parity, from which lost blocks could be made: format it with"
            " parity=1"
        )
    found = validity.all_valid(memory, last)
    if share == 0:
        # A device that was missing for a time may have records of older snapshots.
        for device in memory.blank:
            for area in range(memory.geometry.areas):
                memory.erase_records(device, area)
    hopeless = []
    for position, records in enumerate(found):
        wrote, complete = _mend(memory, records, share, shares)
        written += wrote
        if not complete:
            hopeless.append(position)
    told = [gather([position in hopeless]) for position in range(memory.geometry.areas)]
    if share == 0:
        # Write the blocks first, then the records, then the superblock, so that an interrupted
        # repair starts again.
        for records in found:
            for record in examining.records(memory, records):
                if not record.intact:
                    _write_record(memory, record, records[record.writer])
                    written += 1
        superblocks.write(memory.core, memory.geometry.keep, memory.geometry.parity, memory.blank)
    gather([0])
    memory.blank = ()
    steps = tuple(
        records[0].step
        for records, failed in zip(found, told, strict=False)
        if any(failed_there for (failed_there,) in failed)
    )
    return Repaired(written, steps)


def _mend(
    memory: Memory, records: list[layout.Record], share: int, shares: int
) -> tuple[int, bool]:
    """Returns how many blocks were written, and whether the others are intact."""
    written, complete = 0, True
    try:
        reader = restoring.Reader(memory, records)
        for block in examining.blocks(reader, share, shares):
            if block.intact:
                continue
            if block.content is None:
                complete = False
                _log(records, f"{block} is lost")
                continue
            memory.write(block.device, block.offset, block.content)
            written += 1
    except errors.SnapshotError as error:
        complete = False
        _log(records, str(error))
    return written, complete


def _write_record(memory: Memory, block: examining.Block, record: layout.Record) -> None:
    memory.store_word(block.device, block.offset, 0)
    memory.write(block.device, block.offset + 8, record.to_bytes()[8:])
    memory.store_word(block.device, block.offset, record.number)


def _log(records: list[layout.Record], problem: str) -> None:
    logging.getLogger("jax_cxl").warning(
        "the snapshot of step %d cannot be mended: %s", records[0].step, problem
    )
