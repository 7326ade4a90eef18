"""Formats tables: sizes, times, and plain text for a terminal."""

from collections.abc import Sequence

from lab.simulator import constants as c

Row = Sequence[object]


def bytes_text(value: float) -> str:
    """Formats a number of bytes: 65536 is `64 KiB`."""
    for unit, size in (("GiB", c.GIB), ("MiB", c.MIB), ("KiB", c.KIB)):
        if value >= size:
            return f"{value / size:.4g} {unit}"
    return f"{value:.0f} B"


def time_text(seconds: float) -> str:
    """Formats a time with three digits and a unit."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} us"


def plain(header: Row, rows: Sequence[Row]) -> str:
    lines = [[str(cell) for cell in line] for line in (header, *rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )
