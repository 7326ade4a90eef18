"""mkdocs hook: adds pages and files from outside of docs/ to the site.

Documents link to each other as files of the repository. For example, README.md links to
`docs/takeover.md`, and a page links to `../examples/survive.py`. These links work wherever the
repository is shown. Without this hook, however, the site would have only the files in docs/, and
the links to other files would lead nowhere. The hook adds README.md and similar documents as pages,
and each other file that a page links to. Then it changes the links, so that they lead to what it
has added.
"""

import pathlib
import posixpath
import re
from collections.abc import Callable, Iterator
from typing import Any

from mkdocs.structure.files import File, Files

_ROOT = pathlib.Path(__file__).parents[2]

# Maps each document of the repository to its page on the site.
_DOCUMENTS = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "RELEASING.md": "releasing.md",
    "SECURITY.md": "security.md",
    "CODE_OF_CONDUCT.md": "code_of_conduct.md",
    "lab/README.md": "lab.md",
}
_LANGUAGES = {".py": "python", ".sh": "bash", ".cc": "cpp", ".h": "cpp", ".c": "c", ".yaml": "yaml"}
# Matches a link. Its text may wrap over lines, and its target may be in the line after the text.
_LINK = re.compile(r"(?<!\\)(!?\[(?:[^\]\n]|\n(?!\s*\n))*\]\(\s*)([^()\s]+)(\))")
_FENCE = re.compile(r"\s*(```|~~~)")


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages and files that lie outside of docs/."""
    for document, page in _DOCUMENTS.items():
        content = (_ROOT / document).read_text()
        files.append(File.generated(config, page, content=content))
    linked = set()
    for file in list(files.documentation_pages()):
        source = source_of(file.src_uri)
        for target in _targets((_ROOT / source).read_text()):
            linked.add(_repository_path(source, target))
    for path in sorted(linked):
        if not path.startswith("docs/") and path not in _DOCUMENTS and (_ROOT / path).is_file():
            files.append(_file(config, path))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turns links to files of the repository into links within the site."""
    uri = page.file.src_uri
    if uri.startswith("source/"):
        return markdown
    source = source_of(uri)

    def rewrite(match: re.Match[str]) -> str:
        target, hash_sign, anchor = match[2].partition("#")
        if not target or _is_remote(target):
            return match[0]
        path = _site_path(_repository_path(source, target))
        relative = posixpath.relpath(path, posixpath.dirname(uri) or ".")
        return match[1] + relative + hash_sign + anchor + match[3]

    return _outside_of_code(markdown, lambda text: _LINK.sub(rewrite, text))


def source_of(uri: str) -> str:
    """Returns the path, in the repository, of the file that page `uri` shows."""
    documents = {page: document for document, page in _DOCUMENTS.items()}
    if uri.startswith("notebooks/"):
        return f"docs/{uri.removesuffix('.md')}.ipynb"
    return documents.get(uri, f"docs/{uri}")


def _repository_path(source: str, target: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), target))


def _site_path(path: str) -> str:
    if path in _DOCUMENTS:
        return _DOCUMENTS[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    shown = path + ".md" if pathlib.PurePath(path).suffix in _LANGUAGES else path
    return f"source/{shown}"


def _file(config: Any, path: str) -> File:
    """Returns the site's file for `path`: a page for source code, otherwise the file itself."""
    language = _LANGUAGES.get(pathlib.PurePath(path).suffix)
    if language is None:
        return File.generated(config, _site_path(path), abs_src_path=str(_ROOT / path))
    text = (_ROOT / path).read_text().rstrip()
    page = f"---\nsearch:\n  exclude: true\n---\n# {path}\n\n````{language}\n{text}\n````\n"
    file = File.generated(config, _site_path(path), content=page)
    # Tell mkdocs that this page is not in a menu on purpose.
    file.inclusion = file.inclusion.NOT_IN_NAV
    return file


def _is_remote(target: str) -> bool:
    return re.match(r"[a-z]+:", target) is not None


def _targets(markdown: str) -> Iterator[str]:
    """Yields the targets of a document's links to files, without their anchors."""
    found: list[str] = []

    def note(text: str) -> str:
        found.extend(match[2].partition("#")[0] for match in _LINK.finditer(text))
        return text

    _outside_of_code(markdown, note)
    return (target for target in found if target and not _is_remote(target))


def _outside_of_code(markdown: str, change: Callable[[str], str]) -> str:
    """Applies `change` to the text outside of fenced blocks.

    `change` gets the text between two blocks as a whole, because a link may wrap over lines.
    """
    parts: list[str] = []
    text: list[str] = []
    fence = ""
    for line in markdown.split("\n"):
        match = _FENCE.match(line)
        if match and not fence:
            fence = match[1]
            parts += [change("\n".join(text)), line] if text else [line]
            text = []
        elif fence:
            fence = "" if match and match[1] == fence else fence
            parts.append(line)
        else:
            text.append(line)
    return "\n".join([*parts, change("\n".join(text))] if text else parts)
