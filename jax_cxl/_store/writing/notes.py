"""Notes in the memory: why a process cannot finish a version that it has begun to write.

The other processes find the note while they wait for this process's part. Each process has a place
of its own.
"""

import struct

from jax_cxl._store.memory import checksum, layout
from jax_cxl._store.memory.section import Section

# One, so that the first word shows that the rest is there; token of the agreement; bytes of text.
_FORMAT = struct.Struct("<QQH")
_TEXT_BYTES = layout.NOTE_BYTES - _FORMAT.size - 8


def write(section: Section, writer: int, token: int, text: str) -> None:
    """Writes the note of a process, its first word last."""
    data = text.encode()[:_TEXT_BYTES]
    note = checksum.seal(_FORMAT.pack(1, token, len(data)) + data, layout.NOTE_BYTES)
    for device in section.geometry.mirrors:
        section.write_entry(device, section.geometry.note(writer), note)


def read(section: Section, writer: int, token: int) -> str:
    """Returns the text of a process's note; "" if there is none with this token."""
    for device in section.geometry.mirrors[:2]:
        data = section.devices.read_entry(device, section.geometry.note(writer), layout.NOTE_BYTES)
        if data and checksum.is_sealed(data):
            _, found, size = _FORMAT.unpack_from(data)
            text = data[_FORMAT.size : _FORMAT.size + size].decode(errors="replace")
            if found == token:
                return "".join(c if c.isprintable() else " " for c in text)
    return ""
