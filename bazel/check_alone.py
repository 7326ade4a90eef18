"""Checks that each file of cc/ compiles by itself: sources, tests, kernels, and headers.

    cmake -S . -B build/dev -G Ninja -DJAX_CXL_TESTS=ON
    python bazel/check_alone.py build/dev

The wheel and the tests of CI are compiled in units of several files, in which a file can do without
an #include that another file of the unit has. This script calls the compiler with the options that
CMake wrote for each file. It writes no object files, so it takes a fraction of a build's time.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

_ROOT = pathlib.Path(__file__).resolve().parent.parent
_CC = _ROOT / "cc"


def _options(command: str) -> list[str]:
    """Returns the compiler and its options, without optimization, source and object file."""
    words = shlex.split(command)
    for option in ("-o", "-c", "-x"):
        if option in words:
            at = words.index(option)
            del words[at : at + 2]
    return [word for word in words if not re.match(r"-O[0-3]$|--generate-code=", word)]


def _by_itself(file: pathlib.Path, options: list[str]) -> list[str]:
    """Returns the command that compiles `file` with `options` and writes nothing."""
    # As a main file, a header would cause a warning about its include guard.
    is_header = file.suffix in (".h", ".cuh")
    source = ["-include", str(file), os.devnull] if is_header else [str(file)]
    if file.suffix in (".cu", ".cuh"):
        # nvcc cannot check the syntax only. It reads the functions of the host too.
        return [*options, "-arch=compute_90", "--ptx", "-o", os.devnull, "-x", "cu", *source]
    return [*options, "-fsyntax-only", "-x", "c++", *source]


def _first_include(source: pathlib.Path) -> pathlib.Path | None:
    """Returns the file that a source includes first, or None."""
    first = re.search(r'^#include "(cc/[^"]+)"|^#include', source.read_text(), re.MULTILINE)
    return _ROOT / first[1] if first and first[1] else None


def _nearest(header: pathlib.Path, sources: dict[pathlib.Path, list[str]]) -> list[str] | None:
    """Returns the options of a source that shares most folders with `header`, or None."""

    def compiler(file: pathlib.Path) -> tuple[bool, bool]:
        # Only folders named cuda see CUDA's own headers.
        return file.suffix in (".cu", ".cuh"), "cuda" in file.parts

    alike = [source for source in sources if compiler(source) == compiler(header)]
    if not alike:
        return None
    common = {source: len(os.path.commonpath([source, header])) for source in alike}
    return sources[max(sorted(alike), key=lambda source: common[source])]


def _commands(entries: list[dict[str, str]]) -> dict[pathlib.Path, list[str]]:
    """Returns the command that checks each file of cc/ for which CMake has a compiler."""
    paths = {pathlib.Path(entry["file"]): entry["command"] for entry in entries}
    sources = {path: _options(each) for path, each in paths.items() if path.is_relative_to(_CC)}
    files = dict(sources)
    # A header that a source includes before all else is by itself there.
    shown = {_first_include(source) for source in sources}
    for header in sorted({*_CC.rglob("*.h"), *_CC.rglob("*.cuh")} - shown):
        if options := _nearest(header, sources):
            files[header] = options
    return {file: _by_itself(file, options) for file, options in files.items()}


def main() -> int:
    """Prints the compiler's errors, and the number of files. Returns 1 if there are any errors."""
    parser = argparse.ArgumentParser(description="Compiles each file of cc/ by itself.")
    parser.add_argument("build", type=pathlib.Path, help="a folder that CMake has configured")
    build = parser.parse_args().build
    commands = _commands(json.loads((build / "compile_commands.json").read_text()))
    sources = {file for file in commands if file.suffix in (".cc", ".cu")}
    absent = {*_CC.rglob("*.cc"), *_CC.rglob("*.cu")} - sources
    if any("cuda" not in file.as_posix() for file in absent):
        print(f"{build} does not compile all files in units of their own: configure it as above")
        return 1

    def run(command: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, capture_output=True, text=True, cwd=build)

    failed = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for file, done in zip(commands, pool.map(run, commands.values()), strict=True):
            if done.returncode:
                failed += 1
                name = file.relative_to(_ROOT)
                print(f"{name} does not compile by itself:\n{done.stderr}", flush=True)
    print(f"{failed} of {len(commands)} files failed, {len(absent)} were left out without nvcc")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
