"""Random programs for GPUs, whose collectives start early, and mistakes that the check has to find.

The tests need XLA's compiler for GPUs: see CONTRIBUTING.md.
"""

import functools
import json
import os
import subprocess
import sys

import pytest
from absl.testing import absltest


@functools.cache
def run(*arguments, hash_seed="0"):
    """Returns the exit status, the summary, and all that was printed."""
    path = os.pathsep.join([os.environ["JAX_CXL_GPU_COMPILER"], *sys.path])
    done = subprocess.run(
        [sys.executable, "-m", "lab.fuzz.fuzz_early", *arguments],
        env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        timeout=280,
    )
    if not done.stdout:
        raise AssertionError(done.stderr)
    return done.returncode, json.loads(done.stdout.splitlines()[-1]), done.stdout


@absltest.skipUnless(
    "JAX_CXL_GPU_COMPILER" in os.environ, "needs XLA's compiler for GPUs: see CONTRIBUTING.md"
)
class FuzzEarlyTest(absltest.TestCase):
    def check(self, seed):
        """Returns the kinds of mistakes that were found."""
        status, summary, output = run(f"--first={seed}", "--count=1", "--controls")
        self.assertEqual(status, 0, output)
        self.assertEqual(summary["right"], 1, output)
        self.assertGreater(summary["starts that moved"], 10)
        return {name for name, found in summary["mistakes found"].items() if found}

    def test_orders_are_right_and_mistakes_are_found(self):
        self.assertContainsSubset({"operands", "processes"}, self.check(26))

    @pytest.mark.long
    def test_mistakes_of_all_kinds_are_found(self):
        mistakes = self.check(26) | self.check(49)
        self.assertEqual(mistakes, {"bytes", "memory", "operands", "processes"})

    @pytest.mark.long
    def test_processes_with_other_hashes_have_the_same_orders(self):
        controls = "--first=26", "--count=1", "--controls"
        found = [run(*controls)[1], run(*controls[:2], hash_seed="1")[1]]
        self.assertGreater(found[1]["starts that moved"], 10)
        self.assertEqual(found[0]["orders"], found[1]["orders"])


if __name__ == "__main__":
    absltest.main()
