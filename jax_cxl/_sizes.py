"""Parses and formats sizes: `4KiB`, `8,64KiB`, `4KiB:64MiB:x4`."""

import re

_UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


def parse_list(text: str) -> list[int]:
    """Parses a list of sizes and ranges `FROM:TO[:xFACTOR]`. Returns all its sizes, in bytes."""
    return [size for part in text.split(",") for size in _parse_range(part)]


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


def parse(text: str, least: int = 1) -> int:
    """Returns the bytes of one size."""
    match = re.fullmatch(r"(\d{1,20})\s*(\w*)", text.strip())
    size = int(match[1]) * _UNITS[match[2]] if match and match[2] in _UNITS else -1
    if size < least:
        problem = f"{text!r} is not a size such as 512, 4KiB or 64MiB"
        # What the user probably meant, such as "1GiB" for "1GB", "1G" or "1gib".
        match = re.fullmatch(r"(\d+)\s*([kmgt])(i?b)?", text.strip(), re.ASCII | re.IGNORECASE)
        if match:
            problem += f": write {match[1]}{match[2].upper()}iB"
        raise ValueError(problem)
    return size
