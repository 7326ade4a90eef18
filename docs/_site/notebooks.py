"""mkdocs hook: shows notebooks as pages, with the outputs that they were saved with."""

import json
import pathlib
import re
from typing import Any

from mkdocs.structure.files import File, Files

_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def on_files(files: Files, config: Any) -> Files:
    """Replaces each notebook by a page of the same name."""
    for file in [each for each in files if each.src_uri.endswith(".ipynb")]:
        files.remove(file)
        notebook = json.loads(pathlib.Path(file.abs_src_path).read_text())
        page = file.src_uri.removesuffix(".ipynb") + ".md"
        text = "\n\n".join(map(_cell, notebook["cells"])) + "\n"
        files.append(File.generated(config, page, content=text))
    return files


def _cell(cell: dict[str, Any]) -> str:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return source
    return "\n\n".join([f"```python\n{source}\n```", *map(_output, cell["outputs"])])


def _output(output: dict[str, Any]) -> str:
    data = output.get("data", {})
    if "image/png" in data:
        return f"![Output](data:image/png;base64,{''.join(data['image/png']).strip()})"
    text = "".join(output.get("text", data.get("text/plain", "")))
    return f'```text title="Output"\n{_ESCAPE.sub("", text).rstrip()}\n```'
