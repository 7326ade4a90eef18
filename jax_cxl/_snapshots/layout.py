"""The layout of the memory of snapshots.

Each device begins with a header of three pages: a superblock, the claims of jobs (`fence.py`), and
a second copy of the superblock. An announcement for each process that can write follows
(`announcements.py`). The rest is divided into `keep + 1` equal areas, one for each snapshot and one
that a stopped job may still be writing to. An area begins with a record for each process. Rows of
blocks follow; `stripes.py` says which blocks a row has.

A process writes its blocks, then its record, and at last the first word of the record: the number
of the save. A snapshot is valid while the records of all its processes have the same number, token
and tree, and copies of replicated arrays do not differ. So it becomes valid when the last process
stores its word, and invalid when the first process stores 0 to write another snapshot there.
"""

import dataclasses
import struct
from typing import Self

from jax_cxl._snapshots import checksum

PAGE_BYTES = 4096
SUPERBLOCK_OFFSETS = (0, 2 * PAGE_BYTES)  # As in cc/pool/layout/layout.h.
CLAIMS_OFFSET = PAGE_BYTES
CLAIM_BYTES = 128
NUM_CLAIMS = PAGE_BYTES // CLAIM_BYTES
HEADER_BYTES = 3 * PAGE_BYTES
BLOCK_BYTES = 1 << 20  # A checksum covers one block.
MAX_PROCESSES = 1024
RECORD_BYTES = 256
RECORDS_BYTES = MAX_PROCESSES * RECORD_BYTES
ANNOUNCEMENT_BYTES = 512
REPLICA_SUMS = 16

_AREAS = HEADER_BYTES + MAX_PROCESSES * ANNOUNCEMENT_BYTES  # where they begin

MAGIC = b"JAX_CXLs"
_VERSION = 3


class DamagedError(ValueError):
    """A page was a superblock, and its bytes have changed."""


@dataclasses.dataclass(frozen=True)
class Superblock:
    """A page that each device has twice. It says how the memory is divided.

    Attributes:
      keep: how many snapshots stay.
      parity: how many devices hold parity, 0 or 1.
      num_devices: devices of the memory.
      device: number of this device.
      device_bytes: what each device has for snapshots.
    """

    keep: int
    parity: int
    num_devices: int
    device: int
    device_bytes: int

    _FORMAT = struct.Struct("<8sIIIIIIQ")

    def to_bytes(self) -> bytes:
        """Returns the page."""
        fields = (self.keep, self.parity, self.num_devices, self.device, BLOCK_BYTES)
        data = self._FORMAT.pack(MAGIC, _VERSION, *fields, self.device_bytes)
        page = data.ljust(PAGE_BYTES - 8, b"\0")
        return page + struct.pack("<Q", checksum.of(page))

    @classmethod
    def from_bytes(cls, page: bytes) -> Self:
        """Reads the page of a device.

        Raises:
          DamagedError: it is damaged.
          ValueError: it is not a superblock, or was written by another version.
        """
        magic, version, keep, parity, devices, device, block, size = cls._FORMAT.unpack_from(page)
        # Compute the checksum with the right magic, because the magic itself may be damaged.
        intact = struct.unpack("<Q", page[-8:])[0] == checksum.of(MAGIC + page[8:-8])
        if magic != MAGIC and not intact:
            raise ValueError("it holds something that is no snapshot of jax_cxl")
        if magic != MAGIC or not intact:
            raise DamagedError("its superblock is damaged")
        if (version, block) != (_VERSION, BLOCK_BYTES):
            raise ValueError(f"it has the format {version}.{block}, not {_VERSION}.{BLOCK_BYTES}")
        return cls(keep, parity, devices, device, size)


@dataclasses.dataclass(frozen=True)
class Geometry:
    """Where areas, records and rows begin on each device.

    Attributes:
      keep: how many snapshots stay.
      parity: 1 if each row has a block of parity, else 0.
      num_devices: devices of the memory.
      device_bytes: what each device has for snapshots.
    """

    keep: int
    parity: int
    num_devices: int
    device_bytes: int

    @property
    def areas(self) -> int:
        """How many areas there are."""
        return self.keep + 1

    @property
    def rows(self) -> int:
        """How many rows an area has."""
        area = (self.device_bytes - _AREAS) // self.areas
        return max(0, area - RECORDS_BYTES) // BLOCK_BYTES

    @property
    def blocks_per_row(self) -> int:
        """How many blocks of data a row has."""
        return self.num_devices - self.parity

    def announcement(self, writer: int) -> int:
        """Returns where the announcement of a writer begins."""
        return HEADER_BYTES + writer * ANNOUNCEMENT_BYTES

    def area(self, number: int) -> int:
        """Returns where the area of a save begins."""
        area_bytes = RECORDS_BYTES + self.rows * BLOCK_BYTES
        return _AREAS + number % self.areas * area_bytes

    def record(self, number: int, writer: int) -> int:
        """Returns where the record of a writer begins."""
        return self.area(number) + writer * RECORD_BYTES

    def row(self, number: int, row: int) -> int:
        """Returns where the blocks of a row begin."""
        return self.area(number) + RECORDS_BYTES + row * BLOCK_BYTES

    def bytes_for(self, rows: int) -> int:
        """Returns how many bytes a device needs for areas of this many rows."""
        return _AREAS + self.areas * (RECORDS_BYTES + rows * BLOCK_BYTES)


@dataclasses.dataclass(frozen=True)
class Record:
    """The description of the part of a snapshot that one process wrote.

    Attributes:
      number: number of the save; grows by at least one from save to save.
      token: token of the job that saved: random, the same for all its processes.
      step: the step that the user gave.
      time: when the part was complete, in seconds since 1970.
      writers: how many processes wrote the snapshot.
      writer: which of them wrote this part.
      first_row: the first of its rows.
      data_blocks: how many blocks of data it wrote.
      table_checksum: checksum of the table of the checksums of these blocks. The table lies in the
        blocks after the data.
      directory_bytes: size of the directory, in the blocks after the table; 0 unless writer is 0.
      directory_checksum: its checksum.
      tree: checksum of the structure of the directory, the same in the records of all processes.
      replicas: sums of the checksums of replicated arrays (`replicas.py`).
    """

    number: int
    token: int
    step: int
    time: float
    writers: int
    writer: int
    first_row: int
    data_blocks: int
    table_checksum: int
    directory_bytes: int
    directory_checksum: int
    tree: int
    replicas: tuple[int, ...]

    _FORMAT = struct.Struct(f"<QQqdIIQQQQQQ{REPLICA_SUMS}Q")

    @property
    def table_blocks(self) -> int:
        """How many blocks the checksums take."""
        return table_blocks(self.data_blocks)

    @property
    def directory_blocks(self) -> int:
        """How many blocks the directory takes."""
        return blocks(self.directory_bytes)

    def to_bytes(self) -> bytes:
        """Returns the record. Its first word is the number."""
        *fields, sums = dataclasses.astuple(self)
        data = self._FORMAT.pack(*fields, *sums).ljust(RECORD_BYTES - 8, b"\0")
        return data + struct.pack("<Q", checksum.of(data))

    @classmethod
    def from_bytes(cls, data: bytes) -> Self | None:
        """Reads a record. Returns None if the bytes are not a record, or are damaged."""
        if struct.unpack("<Q", data[-8:])[0] != checksum.of(data[:-8]):
            return None
        fields = cls._FORMAT.unpack_from(data)
        record = cls(*(*fields[:-REPLICA_SUMS], fields[-REPLICA_SUMS:]))
        return record if record.number else None


def blocks(size: int) -> int:
    """Returns how many blocks this many bytes take."""
    return -(-size // BLOCK_BYTES)


def table_blocks(data_blocks: int) -> int:
    """Returns how many blocks the checksums of this many blocks take."""
    return blocks(8 * data_blocks)
