"""Where JAX begins to count the launches of a program.

JAX gives each launch an id of 32 bits, which XLA passes to the handlers. The ids of a program start
at a hash of the program's fingerprint, plus a hash of its devices if these belong to several
processes. The fingerprint may differ between ranks that run the same program: for example, it
depends on how many threads XLA has. So the handlers subtract the hash of the fingerprint from the
ids. The hash of the devices is equal on all ranks.

The hash is FarmHash's Fingerprint64, which never changes. If JAX used another hash, ranks with
equal fingerprints would still agree, and calls of other ranks would end with an error.
"""

_MASK = (1 << 64) - 1
_K0 = 0xC3A5C85C97CB3127
_K1 = 0xB492B66FBE98F273
_K2 = 0x9AE16A3B2F90404F


def first(fingerprint: bytes | None) -> int:
    """Returns the low 32 bits of the hash of a program's fingerprint, 0 if it has none."""
    return 0 if not fingerprint else hash64(fingerprint) & 0xFFFFFFFF


def hash64(text: bytes) -> int:
    """Returns FarmHash's Fingerprint64 of 17 to 64 bytes. Raises ValueError for other sizes."""
    size = len(text)
    if not 17 <= size <= 64:
        raise ValueError(f"a fingerprint has 17 to 64 bytes, not {size}")
    factor = _K2 + 2 * size
    if size <= 32:
        a = _word(text, 0) * _K1 & _MASK
        b = _word(text, 8)
        c = _word(text, size - 8) * factor & _MASK
        d = _word(text, size - 16) * _K2
        return _mix(_turned(a + b, 43) + _turned(c, 30) + d, a + _turned(b + _K2, 18) + c, factor)
    a = _word(text, 0) * _K2 & _MASK
    b = _word(text, 8)
    c = _word(text, size - 8) * factor & _MASK
    d = _word(text, size - 16) * _K2
    y = _turned(a + b, 43) + _turned(c, 30) + d
    z = _mix(y, a + _turned(b + _K2, 18) + c, factor)
    e = _word(text, 16) * factor & _MASK
    f = _word(text, 24)
    g = (y + _word(text, size - 32)) * factor & _MASK
    h = (z + _word(text, size - 24)) * factor
    return _mix(_turned(e + f, 43) + _turned(g, 30) + h, e + _turned(f + a, 18) + g, factor)


def _word(text: bytes, start: int) -> int:
    return int.from_bytes(text[start : start + 8], "little")


def _turned(value: int, bits: int) -> int:
    value &= _MASK
    return (value >> bits | value << 64 - bits) & _MASK


def _mix(u: int, v: int, factor: int) -> int:
    a = ((u ^ v) & _MASK) * factor & _MASK
    a ^= a >> 47
    b = ((v ^ a) & _MASK) * factor & _MASK
    b ^= b >> 47
    return b * factor & _MASK
