"""The layout of the memory of a store.

Each device begins with two copies of a superblock. Then comes the table of sessions: the processes
that use the memory (cc/store/memory/sessions.h). Then comes the catalog, with the place of the
section of each name (`catalog.py`). Sections take the rest.

A section begins with the claims of the jobs that wrote to it (`Claim`), the numbers of the saves
that they have begun, a word that a process sets before it deletes the section (`catalog.py`), and
a note for each process that can write (`writing/save_agreement.py`). The rest of the section is
divided into `keep + 1` equal areas: one for each version that is kept, and one for the next
version. An area begins with a record for each process. Rows of blocks follow; `stripes.py` says
which blocks a row has.

A process writes its blocks, then its record, and at last the first word of the record: the number
of the save. A version is valid while the records of all its processes have the same number, token
and tree, and copies of replicated arrays do not differ. So a version becomes valid when the last of
its processes stores this word. It becomes invalid when the first process stores 0 in the place of
the word, to write another version in the same area.
"""

import dataclasses
import os
import struct
from typing import Self

from jax_cxl._store.memory import checksum

PAGE_BYTES = 4096
SUPERBLOCK_OFFSETS = (0, 2 * PAGE_BYTES)  # As in cc/pool/layout/layout.h.
SESSIONS_OFFSET = 3 * PAGE_BYTES
SESSION_BYTES = 512
SESSIONS_BYTES = 512 * SESSION_BYTES  # As in cc/store/memory/sessions.h.
CATALOG_OFFSET = SESSIONS_OFFSET + SESSIONS_BYTES
ENTRY_BYTES = 256
MAX_SECTIONS = 512
SECTIONS_OFFSET = CATALOG_OFFSET + MAX_SECTIONS * ENTRY_BYTES

CLAIM_BYTES = 128
NUM_CLAIMS = PAGE_BYTES // CLAIM_BYTES
BEGUN_BYTES = 64  # A cache line for each claim, because each has another writer.
BLOCK_BYTES = 1 << 20  # A checksum covers one block.
MAX_PROCESSES = 1024
RECORD_BYTES = 256
RECORDS_BYTES = MAX_PROCESSES * RECORD_BYTES
NOTE_BYTES = 512
REPLICA_SUMS = 16
NOTHING = (1 << 32) - 1  # In a claim: the job uses all areas.

_NOTES = 2 * PAGE_BYTES  # where notes begin in a section
_AREAS = _NOTES + MAX_PROCESSES * NOTE_BYTES  # where areas begin

MAGIC = b"JAX_CXLs"
_VERSION = 8


class DamagedError(ValueError):
    """A page was a superblock, and its bytes have changed."""


@dataclasses.dataclass(frozen=True)
class Superblock:
    """A page that each device has twice. It says how the memory is divided."""

    parity: int
    num_devices: int
    device: int
    device_bytes: int

    _FORMAT = struct.Struct("<8sIIIIIQ")

    def to_bytes(self) -> bytes:
        fields = (self.parity, self.num_devices, self.device, BLOCK_BYTES)
        data = self._FORMAT.pack(MAGIC, _VERSION, *fields, self.device_bytes)
        return checksum.seal(data, PAGE_BYTES)

    @classmethod
    def from_bytes(cls, page: bytes) -> Self:
        """Reads the page of a device. Raises DamagedError, or ValueError if it is no superblock."""
        magic, version, parity, devices, device, block, size = cls._FORMAT.unpack_from(page)
        # Compute the checksum with the right magic, because the magic itself may be damaged.
        intact = checksum.is_sealed(MAGIC + page[8:])
        if magic != MAGIC and not intact:
            raise ValueError("it holds something that is not a store of jax_cxl")
        if magic != MAGIC or not intact:
            raise DamagedError("its superblock is damaged")
        if (version, block) != (_VERSION, BLOCK_BYTES):
            raise ValueError(
                f"it has format {version}.{block}, but this jax_cxl uses format"
                f" {_VERSION}.{BLOCK_BYTES} (to read it, use the jax_cxl that wrote it)"
            )
        return cls(parity, devices, device, size)


@dataclasses.dataclass(frozen=True)
class Claim:
    """An entry in the page of claims.

    Attributes:
      incarnation: a number that grows by one from job to job, from 1 on.
      first: the least number of the job's saves. It is 0 in the entry that the job writes before it
        looks at what its predecessor has written. Afterwards the job writes a second entry.
      retired: the area that the job does not use, or `NOTHING`.
    """

    incarnation: int
    token: int
    first: int
    retired: int
    slot: int
    session: int
    identity: int

    _FORMAT = struct.Struct("<QQQIIQQ")

    def to_bytes(self) -> bytes:
        """Returns the entry. Its first word is the incarnation."""
        return checksum.seal(self._FORMAT.pack(*dataclasses.astuple(self)), CLAIM_BYTES)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self | None:
        """Reads an entry. Returns None if the bytes are not an entry, or are damaged."""
        if not checksum.is_sealed(data):
            return None
        claim = cls(*cls._FORMAT.unpack_from(data))
        return claim if claim.incarnation else None

    @property
    def released(self) -> Self:
        """The entry as the job leaves it: without a session, so that another job may follow."""
        return dataclasses.replace(self, session=0, identity=0)


@dataclasses.dataclass(frozen=True)
class Record:
    """The description of the part of a version that one process wrote.

    Attributes:
      number: number of the save; grows by at least one from save to save.
      token: random token of the job that saved, the same for all its processes.
      version: the version or step that the user gave.
      time: when the part was complete, in seconds since 1970.
      writer: which of them wrote this part.
      table_checksum: checksum of the table of the checksums of these blocks. The table lies in the
        blocks after the data.
      directory_bytes: size of the directory, which is in the blocks after the table; 0 unless
        `writer` is 0.
      tree: checksum of the structure of the directory, the same in the records of all processes.
      section: identity of the section, because a path that was missing for a time may have records
        of a name that was deleted meanwhile, with the same numbers.
      replicas: sums of the checksums of replicated arrays (`place.Copy`).
    """

    number: int
    token: int
    version: int
    time: float
    writers: int
    writer: int
    first_row: int
    data_blocks: int
    table_checksum: int
    directory_bytes: int
    directory_checksum: int
    tree: int
    section: int
    replicas: tuple[int, ...]

    _FORMAT = struct.Struct(f"<QQqdIIQQQQQQQ{REPLICA_SUMS}Q")

    @property
    def table_blocks(self) -> int:
        return table_blocks(self.data_blocks)

    def to_bytes(self) -> bytes:
        """Returns the record. Its first word is the number."""
        *fields, sums = dataclasses.astuple(self)
        return checksum.seal(self._FORMAT.pack(*fields, *sums), RECORD_BYTES)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self | None:
        """Reads a record. Returns None if the bytes are not a record, or are damaged."""
        if not checksum.is_sealed(data):
            return None
        fields = cls._FORMAT.unpack_from(data)
        record = cls(*(*fields[:-REPLICA_SUMS], fields[-REPLICA_SUMS:]))
        return record if record.number else None


Records = list[Record]  # of a version, one of each process


@dataclasses.dataclass(frozen=True)
class Geometry:
    """Where the parts of a section begin on each device."""

    keep: int
    parity: int
    num_devices: int
    start: int
    end: int

    @property
    def areas(self) -> int:
        return self.keep + 1

    @property
    def rows(self) -> int:
        area = (self.end - self.start - _AREAS) // self.areas
        return max(0, area - RECORDS_BYTES) // BLOCK_BYTES

    @property
    def blocks_per_row(self) -> int:
        """How many blocks of data a row has."""
        return self.num_devices - self.parity

    @property
    def claims(self) -> int:
        """Where the page of claims begins."""
        return self.start

    @property
    def mirrors(self) -> range:
        """The devices that each have a copy of the data that parity does not cover."""
        return range(self.num_devices if self.parity else 1)

    def begun(self, claim: int) -> int:
        """Returns where the owner of a claim keeps the number of the save that it has begun."""
        return self.start + PAGE_BYTES + claim * BEGUN_BYTES

    @property
    def ending(self) -> int:
        """Where the word is that a process stores before it deletes the section."""
        return self.begun(NUM_CLAIMS)

    def note(self, writer: int) -> int:
        """Returns where the note of a writer begins."""
        return self.start + _NOTES + writer * NOTE_BYTES

    def area(self, number: int) -> int:
        """Returns where the area of a save begins."""
        area_bytes = RECORDS_BYTES + self.rows * BLOCK_BYTES
        return self.start + _AREAS + number % self.areas * area_bytes

    def record(self, number: int, writer: int) -> int:
        """Returns where the record of a writer begins."""
        return self.area(number) + writer * RECORD_BYTES

    def row(self, number: int, row: int) -> int:
        """Returns where the blocks of a row begin."""
        return self.area(number) + RECORDS_BYTES + row * BLOCK_BYTES

    def bytes_for(self, rows: int) -> int:
        """Returns how many bytes of each device a section of this many rows takes."""
        return _AREAS + self.areas * (RECORDS_BYTES + rows * BLOCK_BYTES)


def random_word() -> int:
    """Returns a random word other than 0."""
    return int.from_bytes(os.urandom(8), "little") >> 1 | 1


def blocks(size: int) -> int:
    """Returns how many blocks this many bytes take."""
    return -(-size // BLOCK_BYTES)


def table_blocks(data_blocks: int) -> int:
    """Returns how many blocks the checksums of this many blocks take."""
    return blocks(8 * data_blocks)
