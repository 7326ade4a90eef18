"""Figures: `python -m jax_cxl bench --draw`, and what all figures share."""

import contextlib
import io
import pathlib
import tempfile

from absl.testing import absltest, parameterized

from jax_cxl._commands import plotting
from jax_cxl._commands.bench import cli

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
    def draw(self, results):
        """Returns the status of the command and the figure."""
        with tempfile.TemporaryDirectory() as folder:
            picture = pathlib.Path(folder) / "speed.png"
            status = cli.main(["--draw", str(results), "--plot", str(picture)])
            return status, picture.read_bytes()

    def test_draws_every_system(self):
        for name in ("cpu-2core-intel-2026-11-22.json", "mpi-2core-2026-11-21.json"):
            status, picture = self.draw(_RESULTS / name)
            self.assertEqual(status, 0)
            self.assertTrue(picture.startswith(b"\x89PNG"))

    def test_the_same_numbers_make_the_same_file(self):
        results = _RESULTS / "cpu-2core-2026-11-21.json"
        self.assertEqual(self.draw(results), self.draw(results))

    def test_refuses_other_files(self):
        for arguments in (
            ["--draw", __file__, "--plot", "x.png"],
            ["--draw", str(_RESULTS / "missing.json"), "--plot", "x.png"],
            ["--draw", str(_RESULTS / "cpu-2core-2026-11-21.json")],
        ):
            told = io.StringIO()
            with contextlib.redirect_stderr(told), self.assertRaises(SystemExit):
                cli.main(arguments)
            self.assertIn("--draw", told.getvalue())


if __name__ == "__main__":
    absltest.main()
