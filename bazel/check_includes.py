"""Checks that C++ files include only the folders that the BUILD.bazel beside them names.

    python bazel/check_includes.py

Bazel finds an include of a folder that the BUILD.bazel does not name, but only when it compiles the
file. This script checks all files in a second. It also finds two things that Bazel accepts: an
include of a folder that only another folder's BUILD.bazel names, on which this folder depends, and
a folder of C++ files without a BUILD.bazel.
"""

import ast
import pathlib
import re
import sys
from collections.abc import Iterator

_ROOT = pathlib.Path(__file__).resolve().parent.parent
_INCLUDE = re.compile(r'^#include "(cc/[^"]+)/[^/"]+"', re.MULTILINE)
_SOURCES = (".h", ".cc", ".cu", ".cuh")
_OF_TESTS = ("_test.cc", "_benchmark.cc")


def _rule(build: pathlib.Path) -> dict[str, set[str]]:
    """Returns the folders that `deps`, `test_deps` and `headers` name in the file `build`."""
    named: dict[str, set[str]] = {}
    for call in ast.walk(ast.parse(build.read_text())):
        if not isinstance(call, ast.Call):
            continue
        for keyword in call.keywords:
            if keyword.arg in ("deps", "test_deps", "headers"):
                labels = (node.value for node in ast.walk(keyword.value) if _is_text(node))
                folders = {label.removeprefix("//").partition(":")[0] for label in labels}
                named.setdefault(keyword.arg, set()).update(folders)
    return named


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _wrong(build: pathlib.Path) -> Iterator[str]:
    """Yields an error for each include of a folder that the BUILD.bazel `build` does not name."""
    named = _rule(build)
    own = build.parent.relative_to(_ROOT).as_posix()
    library = {own} | named.get("deps", set()) | named.get("headers", set())
    for file in sorted(build.parent.iterdir()):
        if file.suffix not in _SOURCES:
            continue
        tests = named.get("test_deps", set()) if file.name.endswith(_OF_TESTS) else set()
        for folder in _INCLUDE.findall(file.read_text()):
            if folder not in library | tests:
                yield f"{file.relative_to(_ROOT)} includes {folder}, which {own}/BUILD.bazel lacks"


def main() -> int:
    """Prints all errors. Returns 1 if there are any."""
    wrong = [line for build in sorted(_ROOT.glob("cc/**/BUILD.bazel")) for line in _wrong(build)]
    folders = {file.parent for file in _ROOT.glob("cc/**/*") if file.suffix in _SOURCES}
    for folder in sorted(folders):
        if not (folder / "BUILD.bazel").exists():
            wrong.append(f"{folder.relative_to(_ROOT)} has no BUILD.bazel")
    for line in wrong:
        print(line)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
