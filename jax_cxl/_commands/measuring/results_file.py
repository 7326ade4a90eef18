"""Results files: JSON with one row per line, and the command that made the file.

This module imports the standard library only: `lab/gpu/gpu_suite.py` uses it before jax_cxl
has been built.
"""

import json
import os.path
import pathlib
import re
import shlex
from collections.abc import Sequence
from typing import Any

# A dictionary stays on one line if the line has at most this many characters.
_LINE = 160


def command_line(program: str, arguments: Sequence[str]) -> str:
    """Returns a command line without this machine's folders, which mean nothing elsewhere.

    It keeps only the last part of each absolute path, even after the "=" of an option.
    """
    kept = (re.sub(r"(?<![^=])/.*", lambda path: os.path.basename(path[0]), a) for a in arguments)
    return f"{program} {shlex.join(kept)}".strip()


def write(path: pathlib.Path, found: dict[str, Any]) -> None:
    """Writes a results file with one row per line, so that a diff shows which rows changed."""
    path.write_text(text(found) + "\n")


def text(value: Any, indent: int = 0) -> str:
    """Returns a value as JSON in which each row of a table has a line of its own.

    A list is a table if an item of it is a dictionary, a list of more than two items, or a table.
    A curve, which is a list of pairs, is not a table, and stays on one line.
    """
    line = json.dumps(value)
    if _is_table(value):
        items = [text(v, indent + 1) if _is_table(v) else json.dumps(v) for v in value]
    elif isinstance(value, dict) and len(line) + indent > _LINE:
        items = [f"{json.dumps(k)}: {text(v, indent + 1)}" for k, v in value.items()]
    else:
        return line
    opening, closing = "[]" if isinstance(value, list) else "{}"
    space = "\n" + " " * (indent + 1)
    return opening + space + ("," + space).join(items) + space[:-1] + closing


def _is_table(value: Any) -> bool:
    return isinstance(value, list) and any(
        isinstance(v, dict) or (isinstance(v, list) and len(v) > 2) or _is_table(v) for v in value
    )
