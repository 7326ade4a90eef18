"""The record that a process writes when its part of a version is complete."""

import dataclasses
import struct
from typing import Self

from jax_cxl._store.memory import checksum
from jax_cxl._store.memory.layout import RECORD_BYTES, REPLICA_SUMS, blocks, table_blocks


@dataclasses.dataclass(frozen=True)
class Record:
    """The description of the part of a version that one process wrote.

    Attributes:
      number: number of the save; grows by at least one from save to save.
      token: random token of the job that saved, the same for all its processes.
      version: the version or step that the user gave.
      time: when the part was complete, in seconds since 1970.
      writers: how many processes wrote the version.
      writer: which of them wrote this part.
      first_row: the first row of this part's blocks.
      data_blocks: how many blocks of data this part has.
      table_checksum: checksum of the table of the checksums of these blocks. The table lies in the
        blocks after the data.
      directory_bytes: size of the directory, which is in the blocks after the table; 0 unless
        `writer` is 0.
      directory_checksum: checksum of the directory.
      tree: checksum of the structure of the directory, the same in the records of all processes.
      replicas: sums of the checksums of replicated arrays (`replicas.py`).
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
        return checksum.seal(self._FORMAT.pack(*fields, *sums), RECORD_BYTES)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self | None:
        """Reads a record. Returns None if the bytes are not a record, or are damaged."""
        if not checksum.is_sealed(data):
            return None
        fields = cls._FORMAT.unpack_from(data)
        record = cls(*(*fields[:-REPLICA_SUMS], fields[-REPLICA_SUMS:]))
        return record if record.number else None
