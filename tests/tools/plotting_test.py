"""Figures of results files, and what all figures share."""

import json
import pathlib
import tempfile

from absl.testing import absltest, parameterized

from lab.figures import collectives, plotting

_RESULTS = pathlib.Path(__file__).parents[2] / "benchmarks/results/collectives"


class SizesTest(parameterized.TestCase):
    @parameterized.parameters(
        (8, "8 B"),
        (1000, "1000 B"),
        (4096, "4 KiB"),
        (1536, "1536 B"),
        (32 << 10, "32 KiB"),
        (1 << 20, "1 MiB"),
        (4 << 30, "4 GiB"),
    )
    def test_text(self, size, text):
        self.assertEqual(plotting.size_text(size), text)


class DrawTest(absltest.TestCase):
    def draw(self, name):
        """Returns the figure of a results file."""
        with tempfile.TemporaryDirectory() as folder:
            picture = pathlib.Path(folder) / "speed.png"
            collectives.draw(json.loads((_RESULTS / name).read_text()), picture)
            return picture.read_bytes()

    def test_draws_every_system(self):
        for name in ("cpu-2core-intel-2026-11-22.json", "mpi-2core-2026-11-21.json"):
            self.assertTrue(self.draw(name).startswith(b"\x89PNG"))

    def test_the_same_numbers_make_the_same_file(self):
        name = "cpu-2core-2026-11-21.json"
        self.assertEqual(self.draw(name), self.draw(name))


if __name__ == "__main__":
    absltest.main()
