"""A slice of benchmarks/kill_sweep.py with fresh seeds: processes die at random instants."""

import pathlib
import random
import subprocess
import sys

from absl.testing import absltest, parameterized

_SWEEP = pathlib.Path(__file__).parents[3] / "benchmarks" / "kill_sweep.py"


class KillsTest(parameterized.TestCase):
    @parameterized.parameters("none", "compile", "shutdown", "regroup", "successor")
    def test_others_go_on(self, stage):
        first = random.randrange(1 << 30)
        done = subprocess.run(
            [sys.executable, _SWEEP, f"--stages={stage}", "--count=1", f"--first={first}"],
            capture_output=True,
            text=True,
        )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    absltest.main()
