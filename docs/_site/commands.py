"""mkdocs hook: puts the help of each command under its heading in reference/job.md."""

import contextlib
import importlib
import io
import os
import re
from typing import Any

from mkdocs.plugins import get_plugin_logger

from jax_cxl.__main__ import COMMANDS

_PAGE = "reference/job.md"
_HEADING = re.compile(r"^### (\w+)$", re.MULTILINE)
_LOG = get_plugin_logger("commands")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Adds the help texts to the page of commands.

    Warns about a command without a heading, and about a heading without a command.
    """
    if page.file.src_uri != _PAGE:
        return markdown
    headings = _HEADING.findall(markdown)
    for name in sorted(set(headings) ^ set(COMMANDS)):
        _LOG.warning(f"{_PAGE}: {name} is a heading or a command, but not both")
    sections = _HEADING.split(markdown)
    parts = [sections[0]]
    for name, text in zip(sections[1::2], sections[2::2], strict=True):
        parts.append(f"### {name}{text.rstrip()}\n\n")
        if name in COMMANDS:
            parts.append(f"```text\n{_help(name)}\n```\n\n")
    return "".join(parts)


def _help(command: str) -> str:
    """Returns what `python -m jax_cxl COMMAND --help` prints."""
    main = importlib.import_module(COMMANDS[command][0]).main
    text = io.StringIO()
    columns = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "82"  # What a page shows without scrolling.
    try:
        with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
            main(["--help"])
    finally:
        if columns is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = columns
    return text.getvalue().rstrip()
