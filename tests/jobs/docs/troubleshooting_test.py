"""Checks that the messages that docs/troubleshooting.md quotes are in the sources."""

import pathlib
import re
import unittest

import jax
from absl.testing import absltest

_ROOT = pathlib.Path(__file__).parents[3]
_JAX = pathlib.Path(jax.__file__).parent / "_src"
_PAGE = _ROOT / "docs" / "troubleshooting.md"
# Splits a quoted message at the parts that the program fills in, and where a string literal of the
# sources may end.
_FILLED_IN = re.compile(r"\.\.\.|\d+|[()]|\brank\b|\bby signal\b|\bValueError:|, ")


def _sources() -> str:
    """Returns all sources without line breaks, with adjacent literals joined."""
    files = [
        *_ROOT.glob("jax_cxl/**/*.py"),
        *_ROOT.glob("cc/**/*.cc"),
        *_ROOT.glob("cc/**/*.h"),
        *(
            _JAX / name
            for name in ("core.py", "distributed.py", "sharding_impls.py", "shard_map.py")
        ),
    ]
    text = "".join(file.read_text() for file in files)
    text = re.sub(r"""(["'])\s*\n\s*f?\1""", "", text)
    return " ".join(text.split())


def _quoted(page: str) -> list[str]:
    """Returns the texts in quotation marks in the first column of the page's tables."""
    rows = [line for line in page.splitlines() if line.startswith("| ")]
    return [text for row in rows for text in re.findall(r'"([^"]+)"', row.split(" | ")[0])]


@unittest.skipUnless((_ROOT / "cc").exists(), "needs the sources of cc/; Bazel's tests lack them")
class TroubleshootingTest(absltest.TestCase):
    def test_messages_are_there(self):
        sources = _sources()
        quoted = _quoted(_PAGE.read_text())
        self.assertGreater(len(quoted), 15)
        for message in quoted:
            for part in filter(None, map(str.strip, _FILLED_IN.split(message))):
                self.assertTrue(part in sources, f"{message!r}: no source says this")


if __name__ == "__main__":
    absltest.main()
