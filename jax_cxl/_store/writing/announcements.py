"""Announcements in the memory, with which processes agree on a save.

Either all processes save the same tree, or none saves. A process writes its announcement, and then
waits for those of the others. Until then it writes nothing else. A process that cannot save
announces why, so that no other process waits for it.
"""

import dataclasses
import struct
from typing import Self

from jax_cxl._store.memory import checksum, layout
from jax_cxl._store.memory.section import Section


@dataclasses.dataclass(frozen=True)
class Announcement:
    """The announcement of one process.

    Attributes:
      attempt: how many announcements the process has made since the processes agreed on the token.
      token: the job's token for this agreement.
      tree: checksum of the description of the tree (`Description.digest`).
      details: checksum of the step and of the Python values, on which the processes must agree too.
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
        numbers = (self.attempt, self.token, self.tree, self.details)
        data = self._FORMAT.pack(*numbers, len(text)) + text
        return checksum.seal(data, layout.ANNOUNCEMENT_BYTES)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self | None:
        """Reads an announcement. Returns None if the bytes are not one."""
        if not checksum.is_sealed(data):
            return None
        *fields, size = cls._FORMAT.unpack_from(data)
        text = data[cls._FORMAT.size : cls._FORMAT.size + size].decode(errors="replace")
        fields.append("".join(c if c.isprintable() else " " for c in text))
        return cls(*fields)


def write(section: Section, writer: int, announcement: Announcement) -> None:
    """Writes an announcement, its first word last."""
    for device in section.geometry.mirrors:
        section.write_entry(device, section.geometry.announcement(writer), announcement.to_bytes())


def read(section: Section, writer: int) -> Announcement | None:
    """Returns the announcement of a process; None if there is none, or not a whole one yet."""
    for device in section.geometry.mirrors[:2]:
        offset = section.geometry.announcement(writer)
        data = section.devices.read_entry(device, offset, layout.ANNOUNCEMENT_BYTES)
        if found := Announcement.from_bytes(data) if data else None:
            return found
    return None
