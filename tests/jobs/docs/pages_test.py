"""Runs the programs and commands of the documents, as blocks.py describes."""

import ast
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import blocks
import pytest
import yaml
from absl.testing import absltest, parameterized

_ROOT = pathlib.Path(__file__).parents[3]
_PAGES = [
    *(_ROOT / name for name in ("README.md", "CONTRIBUTING.md", "lab/README.md")),
    *sorted((_ROOT / "docs").rglob("*.md")),
]
# (name of the test, path)
_NAMED = [
    ("_" + re.sub(r"\W", "_", str(page.relative_to(_ROOT).with_suffix(""))), page)
    for page in _PAGES
]
# Only long tests run these pages: their commands start Slurm, or repeat what examples and other
# pages do.
_LONG = {
    *(
        "_docs_running_on",
        "_docs_training",
        "_docs_offload",
        "_docs_tables",
        "_docs_store",
        "_docs_profiler",
    ),
    *("_docs_moe", "_docs_levels"),
    *("_docs_start_compatibility", "_docs_coming_from"),
}
# Commands of a page run this script as `python`. It replaces the launcher by one whose ranks start
# faster (forked_launch.py).
_PYTHON = f"""\
#!/bin/bash
if [[ $1 == -m && $2 == jax_cxl.launch ]]; then
  shift 2
  set -- {_ROOT}/tests/helpers/forked_launch.py jax.numpy,jax.sharding,jax_cxl.lax "$@"
fi
exec {sys.executable} "$@"
"""
_TIMEOUT_SECONDS = 280


class PagesTest(parameterized.TestCase):
    @parameterized.named_parameters(*_NAMED)
    def test_blocks_say_whether_they_are_run(self, page):
        self.assertEmpty(blocks.indented(page), f"{page}: lines of code that are not fenced")
        for block in blocks.of(page):
            block.check_title()

    @parameterized.named_parameters(*_NAMED)
    def test_syntax(self, page):
        for block in blocks.of(page):
            with self.subTest(str(block)):
                if block.language == "python":
                    ast.parse(block.text, str(block))
                elif block.language == "yaml":
                    self.assertNotEmpty(list(yaml.safe_load_all(block.text)))
                elif block.language == "bash":
                    # A word in capitals, which readers replace, is an ordinary word for bash.
                    command = ["bash", "-n", "-c", block.text]
                    result = subprocess.run(command, capture_output=True, text=True)
                    self.assertEqual(result.returncode, 0, f"{block}\n{result.stderr}")

    @parameterized.named_parameters(*(page for page in _NAMED if page[0] not in _LONG))
    def test_commands(self, page):
        self.check_commands(page)

    @parameterized.named_parameters(*(page for page in _NAMED if page[0] in _LONG))
    @pytest.mark.long
    def test_long_commands(self, page):
        self.check_commands(page)

    def check_commands(self, page):
        found = blocks.of(page)
        commands = [block for block in found if block.language == "bash" and not block.is_file]
        for block in found:
            if block.is_file and block.language == "python":
                named = any(block.title in command.text for command in commands)
                self.assertTrue(named, f"{block}: no command of this page runs {block.title}")
        if not any(block.runs for block in found):
            return
        with tempfile.TemporaryDirectory() as folder:
            _prepare(pathlib.Path(folder))
            output = None
            for block in found:
                if block.is_file:
                    (pathlib.Path(folder) / block.title).write_text(block.text)
                elif block.language == "bash":
                    output = self._run(block, folder) if block.runs else None
                elif block.is_output and output is not None:
                    self._check_output(block, output)

    def _run(self, block, folder):
        """Runs a command, and returns all lines that it has written."""
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("JAX")},
            "PATH": f"{folder}/bin:{os.environ['PATH']}",
            "JAX_PLATFORMS": "cpu",
            # XLA compiles faster without most optimizations.
            "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        }
        result = subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", block.text],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_TIMEOUT_SECONDS,
        )
        self.assertEqual(result.returncode, 0, f"{block}\n{block.text}\n{result.stdout}")
        return result.stdout

    def _check_output(self, block, output):
        """Checks that `output` has each line of the block, where `...` stands for any text.

        The lines may be in any order, because ranks write at the same time.
        """
        lines = [" ".join(line.split()) for line in output.splitlines()]
        for expected in filter(None, block.text.splitlines()):
            parts = " ".join(expected.split()).split("...")
            pattern = re.compile(".*".join(map(re.escape, parts)))
            found = any(pattern.fullmatch(line) for line in lines)
            self.assertTrue(found, f"{block}: {expected!r} is not in\n{output}")


def _prepare(folder):
    """Makes the folder in which the commands run, with links to the folders that they read."""
    for name in ("benchmarks", "docs", "examples", "lab"):
        (folder / name).symlink_to(_ROOT / name)
    (folder / "bin").mkdir()
    python = folder / "bin" / "python"
    python.write_text(_PYTHON)
    python.chmod(0o755)


if __name__ == "__main__":
    absltest.main()
