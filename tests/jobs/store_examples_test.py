"""Runs the examples of the store."""

import importlib.util
import pathlib
import re
import subprocess
import sys

import job
import pytest
from absl.testing import absltest

_EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"


def _run(script: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, str(_EXAMPLES / script), *arguments],
        capture_output=True,
        text=True,
        env=job.quick_environment(),
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class StoreExamplesTest(absltest.TestCase):
    @pytest.mark.long
    def test_actor_learner(self):
        said = _run("actor_learner.py", "--steps=20", "--where=shm:examples_test?size=96MiB")
        rewards = [float(x) for x in re.findall(r"mean reward (\S+)", said)]
        self.assertLen(rewards, 3)
        self.assertGreater(rewards[-1], rewards[0] + 0.3)

    @pytest.mark.long
    def test_prefill_decode(self):
        said = _run("prefill_decode.py", "--requests=2", "--tokens=4")
        self.assertIn("32 tokens of two jobs are equal to those of one job", said)

    @pytest.mark.long
    @absltest.skipUnless(importlib.util.find_spec("torch"), "PyTorch is not installed")
    def test_served(self):
        said = _run("served.py", "--versions=6", "--where=shm:served_test?size=32MiB")
        found = re.findall(r"version (\d+): (\S+) nats", said)
        self.assertEqual(found[-1][0], "5")
        self.assertLess(float(found[-1][1]), 3.5)  # A uniform distribution has 5.5.
        self.assertIn("the server has imported JAX: False", said)


if __name__ == "__main__":
    absltest.main()
