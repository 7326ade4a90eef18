"""mkdocs hook: shows notebooks as pages, with the outputs that are saved in them."""

import json
import pathlib
import re
from typing import Any

from mkdocs.structure.files import File, Files

_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def on_files(files: Files, config: Any) -> Files:
    """Replaces each notebook with a page of the same name."""
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
    return "\n\n".join([f"```python\n{source}\n```", *map(_output, _joined(cell["outputs"]))])


def _joined(outputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Joins neighboring outputs that a cell has written to the same stream, such as stdout."""
    joined: list[dict[str, Any]] = []
    for output in outputs:
        if joined and "name" in output and output["name"] == joined[-1].get("name"):
            joined[-1] = {**joined[-1], "text": [*joined[-1]["text"], *output["text"]]}
        else:
            joined.append(output)
    return joined


def _output(output: dict[str, Any]) -> str:
    data = output.get("data", {})
    if "image/png" in data:
        return f"![Output](data:image/png;base64,{''.join(data['image/png']).strip()})"
    text = "".join(output.get("text", data.get("text/plain", "")))
    return f'```text title="Output"\n{_ESCAPE.sub("", text).rstrip()}\n```'
