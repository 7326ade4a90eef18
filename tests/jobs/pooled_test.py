"""Jobs train with a pooled optimizer while their processes are killed."""

import job
import pytest
from absl.testing import absltest, parameterized

_KILLS = "lab.kills.tier_kills"


class PooledTest(parameterized.TestCase):
    # Each death, of a process or of the whole job, takes some seconds, so there are only a few.
    @parameterized.parameters(
        (f"--kills={max(2, int(job.SECONDS / 2))}", "--seed=3"),
        ("--kills=2", "--whole"),
    )
    @pytest.mark.sample(2)
    def test_losses_are_those_of_an_undisturbed_job(self, *arguments):
        done = job.run(_KILLS, *arguments, processes=1)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn('"right": 1', done.stdout)


if __name__ == "__main__":
    absltest.main()
