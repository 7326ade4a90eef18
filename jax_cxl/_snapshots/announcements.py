"""What each process announces in the memory before it saves, so that all save the same, or none.

A process writes its announcement, and waits for those of the others. Nothing else has been written
by then. A process that cannot save announces why, so that no other process waits for it.
"""

import dataclasses
import struct
from typing import Self

from jax_cxl._snapshots import checksum, layout
from jax_cxl._snapshots.memory import Memory


@dataclasses.dataclass(frozen=True)
class Announcement:
    """The announcement of one process.

    Attributes:
      attempt: how many saves the process has tried since the processes agreed on the token.
      token: token of the job, of this agreement.
      tree: checksum of the description of the tree (`Description.digest`).
      details: checksum of all else that the processes have to agree on.
      problem: why the process cannot save; "" if it can.
    """

    attempt: int
    token: int
    tree: int = 0
    details: int = 0
    problem: str = ""

    _FORMAT = struct.Struct("<4QH")
    _TEXT_BYTES = layout.ANNOUNCEMENT_BYTES - _FORMAT.size - 8

    def to_bytes(self) -> bytes:
        """Returns the announcement. Its first word is the attempt."""
        text = self.problem.encode()[: self._TEXT_BYTES]
        fields = (self.attempt, self.token, self.tree, self.details, len(text))
        data = (self._FORMAT.pack(*fields) + text).ljust(layout.ANNOUNCEMENT_BYTES - 8, b"\0")
        return data + struct.pack("<Q", checksum.of(data))

    @classmethod
    def from_bytes(cls, data: bytes) -> Self | None:
        """Reads an announcement. Returns None if the bytes are not one."""
        if struct.unpack("<Q", data[-8:])[0] != checksum.of(data[:-8]):
            return None
        attempt, token, tree, details, size = cls._FORMAT.unpack_from(data)
        text = data[cls._FORMAT.size : cls._FORMAT.size + size].decode(errors="replace")
        printable = "".join(c if c.isprintable() else " " for c in text)
        return cls(attempt, token, tree, details, printable)


def write(memory: Memory, writer: int, announcement: Announcement) -> None:
    """Writes an announcement to all devices, its first word last."""
    data = announcement.to_bytes()
    offset = memory.geometry.announcement(writer)
    for device in range(memory.geometry.num_devices):
        memory.store_word(device, offset, 0)
        memory.write(device, offset + 8, data[8:])
        memory.store_word(device, offset, announcement.attempt)


def read(memory: Memory, writer: int) -> Announcement | None:
    """Returns the announcement of a process; None if it has none, or is just writing it."""
    offset = memory.geometry.announcement(writer)
    for device in range(1 + memory.geometry.parity):
        word = memory.load_word(device, offset)
        data = memory.read(device, offset, layout.ANNOUNCEMENT_BYTES).tobytes()
        found = Announcement.from_bytes(data) if word else None
        if found and found.attempt == word == memory.load_word(device, offset):
            return found
    return None
