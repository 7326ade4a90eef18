"""The checksum of snapshots: XXH3 of 64 bits, by the library xxhash."""

import functools
import struct
from typing import Any

from jax_cxl import errors

NUMBERS = 1 << 40  # how many numbers fit in a word with a checksum


def of(data: Any) -> int:
    """Returns the checksum of an object with a buffer."""
    digest: int = _xxhash().xxh3_64_intdigest(data)
    return digest


def seal(data: bytes, size: int) -> bytes:
    """Returns an entry of `size` bytes: the data, zeros, and the checksum of both at the end."""
    data = data.ljust(size - 8, b"\0")
    return data + struct.pack("<Q", of(data))


def seal_number(number: int) -> int:
    """Returns a number below `NUMBERS` as a word that has its own checksum of 24 bits."""
    return number | (of(struct.pack("<Q", number)) >> 40) << 40 if number else 0


def number_of(word: int) -> int | None:
    """Returns the number in a word of `seal_number`; None if the word is damaged."""
    number = word & (NUMBERS - 1)
    return number if seal_number(number) == word else None


def is_sealed(entry: bytes) -> bool:
    """Whether an entry ends with its checksum."""
    return struct.unpack("<Q", entry[-8:])[0] == of(entry[:-8])


@functools.cache
def _xxhash() -> Any:
    try:
        import xxhash
    except ImportError:
        raise errors.CxlError(
            "stores and snapshots need the package xxhash: pip install 'jax_cxl[store]'"
        ) from None
    return xxhash
