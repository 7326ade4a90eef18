"""The fenced blocks of the documents, and whether the tests run them.

    ```python title="sum.py"              a file, which a command of the same page runs
    ```python title="Part of a program"   must parse
    ```bash                               is run
    ```bash title="Needs mpirun: ..."     is run if the named programs are installed
    ```text title="Output"                must be among the output of the previous command
    ```yaml                               must parse

Any other `text` block is not checked. A command that the tests do not run has a comment in the line
above it, which readers do not see:

    <!-- Not run by the tests: REASON -->
    ```bash
"""

import dataclasses
import os
import pathlib
import re
import shutil
from collections.abc import Iterator

_FENCE = re.compile(r"(?P<indent> *)(?P<fence>`{3,})(?P<info>.*)")
_NOTE = re.compile(r" *<!-- Not run by the tests: (?P<reason>.+) -->")
_TITLE = re.compile(r' title="(?P<title>[^"]*)"')
_ITEM = re.compile(r"(\*|-|\d+\.) |\[\^")
LANGUAGES = ("python", "bash", "text", "yaml")


@dataclasses.dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
      page: the document.
      line: number of the first line of the text.
      language: "python", "bash", "text" or "yaml".
      title: its title, or "".
      text: its contents.
      left_out: why the tests do not run it, or "".
    """

    page: pathlib.Path
    line: int
    language: str
    title: str
    text: str
    left_out: str = ""

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def is_file(self) -> bool:
        return re.fullmatch(r"[\w.]+\.(py|sh|yaml)", self.title) is not None

    @property
    def is_output(self) -> bool:
        return (self.language, self.title) == ("text", "Output")

    @property
    def runs(self) -> bool:
        """Whether this is a command, and can run on this machine."""
        if self.language != "bash" or self.is_file or self.left_out:
            return False
        needs = re.match(r"Needs ([^:]+)", self.title)
        return not self.title or bool(needs and all(map(_is_there, needs[1].split(", "))))

    def check_title(self) -> None:
        """Raises AssertionError if the block's title does not tell whether it is run."""
        if self.language not in LANGUAGES:
            raise AssertionError(f"{self}: the language is {self.language!r}, not in {LANGUAGES}")
        known = {
            "python": r"[\w.]+\.py|Part of a program.*",
            "bash": r"|[\w.]+\.sh|Needs [\w, -]+(: .+)?",
            "text": r"|Output|.*",
            "yaml": r"|[\w.]+\.yaml",
        }[self.language]
        if not re.fullmatch(known, self.title):
            raise AssertionError(f"{self}: {self.title!r} does not tell whether the block is run")
        if self.left_out and (self.language != "bash" or self.title):
            raise AssertionError(f"{self}: only a command without a title can be left out")


def of(page: pathlib.Path) -> list[Block]:
    """Returns the blocks of a document."""
    return list(_blocks(page))


def indented(page: pathlib.Path) -> list[int]:
    """Returns the line numbers of indented code, which has no title to tell whether it is run."""
    found, fenced, blank, item = [], False, True, False
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if _FENCE.match(line):
            fenced = not fenced
        if not fenced and line.strip():
            if not line.startswith(" "):
                item = _ITEM.match(line) is not None
            elif line.startswith("    ") and blank and not item:
                found.append(number)
        blank = not line.strip()
    return found


def _blocks(page: pathlib.Path) -> Iterator[Block]:
    lines = iter(enumerate(page.read_text().splitlines(), 1))
    note = None
    for number, line in lines:
        fence = _FENCE.match(line)
        if fence is None:
            note = _NOTE.fullmatch(line)
            continue
        body = []
        for _, line in lines:
            if line.strip() == fence["fence"]:
                break
            body.append(line.removeprefix(fence["indent"]))
        title = _TITLE.search(fence["info"])
        yield Block(
            page,
            number + 1,
            fence["info"].split(" ")[0],
            title["title"] if title else "",
            "\n".join(body) + "\n",
            note["reason"] if note else "",
        )
        note = None


def _is_there(need: str) -> bool:
    return os.geteuid() == 0 if need == "root" else shutil.which(need) is not None
