"""Finds the programs in the documents that run as two processes."""

import dataclasses
import re
from collections.abc import Iterator

from lab.guests import image
from tests.jobs.docs import blocks

_COMMAND = re.compile(
    r"^(?P<variables>(?:\w+=\w+ )*)python -m jax_cxl\.launch -n 2"
    r"(?: --devices-per-process (?P<devices>\d+))?(?P<replaced> --replace-collectives)?"
    r" (?P<file>\w+\.py)$",
    re.MULTILINE,
)


@dataclasses.dataclass(frozen=True)
class Program:
    """A program of a document, and how the document starts it.

    Attributes:
      name: path of the document, and file name of the program.
      text: the program.
      variables: "export" commands of bash, or "".
      devices: number of devices of a process.
    """

    name: str
    text: str
    variables: str
    devices: int


def programs() -> Iterator[Program]:
    """Finds the programs. If a document starts one in several ways, yields it once for each way."""
    for page in (image.ROOT / "README.md", *sorted((image.ROOT / "docs").rglob("*.md"))):
        texts = {}
        for block in blocks.of(page):
            if block.is_file:
                texts[block.title] = block.text
                continue
            for command in _COMMAND.finditer(block.text) if block.language == "bash" else ():
                variables = command["variables"].split()
                if command["replaced"]:
                    variables.append("JAX_CXL_REPLACE_COLLECTIVES=1")
                name = f"{page.relative_to(image.ROOT)}: {command['file']}"
                exports = f"export {' '.join(variables)}" if variables else ""
                yield Program(name, texts[command["file"]], exports, int(command["devices"] or 1))
