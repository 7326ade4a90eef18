"""The wire format of protocol buffers: messages as lists of numbered fields.

A message is read one level deep. Fields that nobody changes are written back byte for byte, so a
message keeps the fields of newer versions of its type.
"""

from collections.abc import Iterable, Iterator

Value = int | bytes

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_WORD = (1 << 64) - 1


class MalformedError(ValueError):
    """The bytes are not a protocol buffer message."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"a program of XLA {what}; please report this, with the versions of jax and jaxlib"
        )


class Message:
    """A message: its fields in order, each a number, a wire type and a value.

    The value of a varint is an unsigned int. Every other value is bytes.
    """

    def __init__(self, data: bytes = b"") -> None:
        self._fields = _fields(data)

    def get(self, number: int) -> int:
        """Returns the last value of an integer field, signed; 0 if there is none."""
        for field, _, value in reversed(self._fields):
            if field == number and isinstance(value, int):
                return value - (1 << 64) if value >> 63 else value
        return 0

    def blob(self, number: int) -> bytes:
        """Returns the last value of a string, bytes or message field; empty if there is none."""
        for field, _, value in reversed(self._fields):
            if field == number and isinstance(value, bytes):
                return value
        return b""

    def text(self, number: int) -> str:
        return self.blob(number).decode()

    def blobs(self, number: int) -> list[bytes]:
        """Returns all values of a repeated string, bytes or message field."""
        return [v for field, _, v in self._fields if field == number and isinstance(v, bytes)]

    def messages(self, number: int) -> "list[Message]":
        """Returns all values of a repeated message field."""
        return [Message(blob) for blob in self.blobs(number)]

    def has(self, number: int) -> bool:
        """Whether the field has a value."""
        return any(field == number for field, _, _ in self._fields)

    def integers(self, number: int) -> list[int]:
        """Returns all values of a repeated integer field, packed or not, as signed integers."""
        values: list[int] = []
        for field, _, value in self._fields:
            if field != number:
                continue
            if isinstance(value, int):
                values.append(value)
            else:
                position = 0
                while position < len(value):
                    item, position = _varint(value, position)
                    values.append(item)
        return [v - (1 << 64) if v >> 63 else v for v in values]

    def items(self) -> Iterator[tuple[int, int, Value]]:
        """Yields number, wire type and value of each field, in order."""
        return iter(self._fields)

    def append(self, number: int, kind: int, value: Value) -> None:
        """Appends a field, given in the form in which `items` yields fields."""
        self._fields.append((number, kind, value))

    def clear(self, number: int) -> "Message":
        """Removes all values of a field. Returns the message."""
        self._fields = [f for f in self._fields if f[0] != number]
        return self

    def set(self, number: int, value: "int | str | bytes | Message") -> "Message":
        """Gives a field one value. Returns the message."""
        return self.clear(number).add(number, value)

    def add(self, number: int, value: "int | str | bytes | Message") -> "Message":
        """Appends a value to a repeated field. Returns the message."""
        if isinstance(value, int):
            self._fields.append((number, _VARINT, value & _WORD))
        else:
            if isinstance(value, Message):
                value = value.encode()
            blob = value.encode() if isinstance(value, str) else value
            self._fields.append((number, _BYTES, blob))
        return self

    def set_integers(self, number: int, values: Iterable[int]) -> "Message":
        """Gives a repeated integer field its values, packed. Returns the message."""
        packed = b"".join(_encode_varint(v & _WORD) for v in values)
        self.clear(number)
        return self.add(number, packed) if packed else self

    def encode(self) -> bytes:
        out = []
        for number, kind, value in self._fields:
            out.append(_encode_varint(number << 3 | kind))
            if isinstance(value, int):
                out.append(_encode_varint(value))
            else:
                if kind == _BYTES:
                    out.append(_encode_varint(len(value)))
                out.append(value)
        return b"".join(out)


def _fields(data: bytes) -> list[tuple[int, int, Value]]:
    """Returns number, wire type and value of each field of a serialized message."""
    # A hook reads megabytes of messages. So integers of one byte, which are the most frequent, are
    # decoded without a call.
    found: list[tuple[int, int, Value]] = []
    position, end = 0, len(data)
    try:
        while position < end:
            tag = data[position]
            position += 1
            if tag >= 0x80:
                tag, position = _varint(data, position - 1)
            kind = tag & 7
            if kind == _FIXED64:
                length = 8
            elif kind == _FIXED32:
                length = 4
            elif kind in (_VARINT, _BYTES):
                length = data[position]
                position += 1
                if length >= 0x80:
                    length, position = _varint(data, position - 1)
                if kind == _VARINT:
                    found.append((tag >> 3, kind, length))
                    continue
            else:
                raise MalformedError(f"has the unknown wire type {kind} at byte {position}")
            value = data[position : position + length]
            if len(value) != length:
                raise MalformedError(f"ends within a field of {length} bytes at byte {position}")
            position += length
            found.append((tag >> 3, kind, value))
    except IndexError:
        raise MalformedError("ends within an integer") from None
    return found


def _varint(data: bytes, position: int) -> tuple[int, int]:
    result = shift = 0
    while True:
        byte = data[position]
        position += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, position
        shift += 7


def _encode_varint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
