"""Parses and formats sizes: `4KiB`, `8,64KiB`, `4KiB:64MiB:x4`."""

import re

_UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


def parse_list(text: str) -> list[int]:
    """Returns the sizes in bytes of a list of sizes and ranges `FROM:TO[:xFACTOR]`.

    Raises:
      ValueError: the text is malformed.
    """
    return [size for part in text.split(",") for size in _parse_range(part)]


def in_powers_of_two(text: str) -> str | None:
    """Returns what the user probably meant, such as "1GiB" for "1GB", "1G" or "1gib"; otherwise
    None.
    """
    match = re.fullmatch(r"(\d+)\s*([kmgt])(i?b)?", text.strip(), re.ASCII | re.IGNORECASE)
    return f"{match[1]}{match[2].upper()}iB" if match else None


def format_size(size: int) -> str:
    """Returns `64KiB` for 65536. If no unit divides the size, returns the plain number."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size and size % _UNITS[unit] == 0:
            return f"{size // _UNITS[unit]}{unit}"
    return str(size)


def _parse_range(text: str) -> list[int]:
    bounds = text.split(":")
    if len(bounds) == 1:
        return [parse(text)]
    factor = bounds[2] if len(bounds) == 3 else "x2"
    if len(bounds) > 3 or not re.fullmatch(r"x[1-9]\d*", factor) or factor == "x1":
        raise ValueError(f"{text!r} is not a range of sizes such as 4KiB:64MiB:x4")
    first, last = parse(bounds[0]), parse(bounds[1])
    if first > last:
        raise ValueError(f"{text!r} ends before it starts: put the smaller size first")
    sizes = []
    while first <= last:
        sizes.append(first)
        first *= int(factor[1:])
    return sizes


def parse(text: str) -> int:
    """Returns the bytes of one size.

    Raises:
      ValueError: the text is malformed, or 0.
    """
    match = re.fullmatch(r"([1-9]\d*)\s*(\w*)", text.strip())
    if match is None or match[2] not in _UNITS:
        problem = f"{text!r} is not a size such as 512, 4KiB or 64MiB"
        if meant := in_powers_of_two(text):
            problem += f": write {meant}"
        raise ValueError(problem)
    return int(match[1]) * _UNITS[match[2]]
