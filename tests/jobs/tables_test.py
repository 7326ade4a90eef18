"""Jobs of several processes train a table together."""

import pathlib
import re

import job
import pytest
import shared_folder
from absl.testing import absltest, parameterized

_EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"
_KILLS = "lab.kills.table_kills"


def _losses(example: str, *arguments: str) -> list[str]:
    # Compiled quickly, the two programs would round in different places.
    done = job.run(str(_EXAMPLES / example), *arguments, modules=("jax_cxl",), quick=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return re.findall(r"loss (\S+)", done.stdout)


class TablesTest(parameterized.TestCase):
    def test_steps_of_a_job_are_those_of_one_device(self):
        with shared_folder.folder() as folder:
            where = f"--where=file:{folder}/a?size=32MiB"
            done = job.run("tables/train.py", where, modules=("jax_cxl",))
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertEqual(done.stdout.count("done with"), 2)

    @parameterized.parameters(
        ("train_ngrams.py", "--rows=20000", "--dense"),
        ("graph_sage.py", "--nodes=5000", "--features=host"),
    )
    @pytest.mark.long
    def test_examples_learn_what_they_learn_without_a_table(self, example, size, without):
        with shared_folder.folder() as folder:
            where = f"--where=file:{folder}/a?size=96MiB"
            arguments = (where, size, "--steps=10", "--batch=4")
            losses = _losses(example, *arguments)
            self.assertLen(losses, 1)
            self.assertEqual(losses, _losses(example, *arguments, without))

    def test_kills(self):
        # Each kill takes seconds, so there are only a few.
        kills = max(1, int(job.SECONDS / 2))
        done = job.run(_KILLS, f"--kills={kills}", "--readers=1", "--seed=3", processes=1)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn('"wrong": 0', done.stdout)


if __name__ == "__main__":
    absltest.main()
