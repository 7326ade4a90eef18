"""mkdocs hook: puts tables of results into pages.

A mark `<!-- table: FILE NAME -->` stands for table NAME of docs/data/FILE, whose first row is the
header. A mark `<!-- reports: FOLDER -->` stands for the texts of all reports in a folder.
"""

import json
import pathlib
import re
from typing import Any

from mkdocs.plugins import get_plugin_logger

from jax_cxl._nccl.report import text

_FOLDER = pathlib.Path(__file__).parents[1] / "data"
_MARK = re.compile(r"<!-- table: (\S+) (.+) -->")
_REPORTS = re.compile(r"<!-- reports: (\S+) -->")
_LOG = get_plugin_logger("tables")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Replaces the marks, and warns about a table that no page shows."""
    shown: dict[str, set[str]] = {}

    def table(mark: re.Match[str]) -> str:
        shown.setdefault(mark[1], set()).add(mark[2])
        header, *rows = json.loads((_FOLDER / mark[1]).read_text())[mark[2]]
        lines = [header, ["---"] * len(header), *rows]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)

    markdown = _REPORTS.sub(_reports, _MARK.sub(table, markdown))
    for file, names in shown.items():
        for name in sorted(json.loads((_FOLDER / file).read_text()).keys() - names):
            _LOG.warning(f"{page.file.src_uri} does not show table {name} of {file}")
    return markdown


def _reports(mark: re.Match[str]) -> str:
    """Returns the texts of the reports in a folder of the repository, the newest first."""
    files = (_FOLDER.parents[1] / mark[1]).glob("*.json")
    found = sorted((json.loads(file.read_text()) for file in files), key=lambda each: each["date"])
    return "\n".join(map(text.text, reversed(found)))
