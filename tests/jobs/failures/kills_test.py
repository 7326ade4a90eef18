"""Some jobs of lab/kills/kill_sweep.py, whose processes die at random instants."""

import random

import pytest
from absl.testing import absltest, parameterized

from lab.kills import kill_sweep


class KillsTest(parameterized.TestCase):
    @parameterized.parameters("none", "compile", "shutdown", "regroup")
    @pytest.mark.sample(2)
    def test_others_go_on(self, stage):
        first = random.randrange(1 << 30)
        # main prints what was wrong.
        self.assertEqual(kill_sweep.main([f"--stages={stage}", "--count=1", f"--first={first}"]), 0)


if __name__ == "__main__":
    absltest.main()
