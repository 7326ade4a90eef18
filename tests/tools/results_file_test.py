"""Results files: how they are written, and which are kept."""

import json
import pathlib
import tempfile

from absl.testing import absltest

from jax_cxl._commands.measuring import results_file

_ROOT = pathlib.Path(__file__).parents[2]
# The most lines of all files together. To stay below the limit, a new file replaces an older file
# about the same question.
_MOST_LINES = 6_200
_ALL = sorted((_ROOT / "benchmarks" / "results").rglob("*.json"))
# Users write reports, and docs/reports.md shows all of them.
_RESULTS = [path for path in _ALL if path.parent.name != "reports"]


class ResultsFileTest(absltest.TestCase):
    def test_a_row_is_a_line(self):
        rows = [{"op": "psum", "bytes": size, "time_us": {"min": 1.0}} for size in (8, 64)]
        found = {
            "machine": {"cpu": "x" * 200},
            "results": rows,
            "turns": [rows, rows],
            "lists": [[1, 2, 3], [4, 5, 6]],
            "curve": [[0, 5.4], [1, 5.1]],
            "empty": [],
        }
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "found.json"
            results_file.write(path, found)
            text = path.read_text()
        self.assertEqual(json.loads(text), found)
        lines = [line.strip().rstrip(",") for line in text.splitlines()]
        for row in rows:
            self.assertEqual(lines.count(json.dumps(row)), 3)
        self.assertIn("[4, 5, 6]", lines)
        self.assertIn('"curve": [[0, 5.4], [1, 5.1]]', lines)

    def test_records_no_folders_of_this_machine(self):
        arguments = ["--json", "/some/where/x.json", "--plot=/some/x.png", "--sizes", "4KiB:1MiB"]
        self.assertEqual(
            results_file.command_line("bench", [*arguments, "there/y"]),
            "bench --json x.json --plot=x.png --sizes 4KiB:1MiB there/y",
        )


class KeptFilesTest(absltest.TestCase):
    def test_documents_cite_every_file(self):
        documents = [_ROOT / "README.md", *(_ROOT / "docs").rglob("*.md")]
        text = "".join(document.read_text() for document in documents)
        self.assertNotEmpty(_RESULTS)
        self.assertEmpty([path.name for path in _RESULTS if path.name not in text])

    def test_files_stay_short(self):
        lines = {path.name: len(path.read_text().splitlines()) for path in _ALL}
        self.assertLess(sum(lines.values()), _MOST_LINES, lines)

    def test_files_are_as_they_are_written(self):
        for path in _RESULTS:
            text = path.read_text()
            self.assertEqual(text, results_file.text(json.loads(text)) + "\n", path.name)


if __name__ == "__main__":
    absltest.main()
