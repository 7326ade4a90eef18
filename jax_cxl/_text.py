"""Text of messages."""

from collections.abc import Sequence


def warn(text: str, *arguments: object) -> None:
    """Reports something to the logger `jax_cxl`."""
    import logging  # A program that reports nothing starts faster without this import.

    logging.getLogger("jax_cxl").warning(text, *arguments)


def printable(text: str) -> str:
    r"""Makes a text safe to print on a terminal.

    The text may come from a file or a pool that is damaged. Returns it with "?" in place of control
    characters and invisible characters. Newlines stay.

    `PrintableText` of cc/base/text.h does this for the native library.

    Example:
      >>> printable("ab\\x1b[2J\\u202e")
      'ab?[2J?'
    """
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in text)


def clause(error: object) -> str:
    """Returns the text of an error without a full stop at its end, so that a sentence can go on.

    Example:
      >>> clause(ValueError("coordinator_address should be defined."))
      'coordinator_address should be defined'
    """
    return str(error).rstrip().rstrip(".")


def numbered(noun: str, numbers: Sequence[int]) -> str:
    """Returns "rank 3" or "ranks 3, 4". Names only the first 16 numbers."""
    plural = {"process": "processes", "rank": "ranks"}[noun]
    few = ", ".join(map(str, numbers[:16])) + (", ..." if len(numbers) > 16 else "")
    return f"{noun if len(numbers) == 1 else plural} {few}"


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns the lines of a table with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
