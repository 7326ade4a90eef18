"""Random programs, taken over, and a negative control: a mistake that they have to find."""

import json

import job
import pytest
from absl.testing import absltest

_PROGRAM = "lab.fuzz.fuzz_programs"


class FuzzTest(absltest.TestCase):
    def test_random_programs_are_right(self):
        done = job.run(_PROGRAM, "--count=10", devices_per_process=2)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        summary = _summary(done.stdout)
        self.assertEqual(summary["programs"], 10)
        self.assertGreater(summary["right"], 4)
        self.assertGreater(summary["collectives taken over"], 10)
        self.assertEqual(summary["collectives left to XLA"], 0)

    @pytest.mark.long
    def test_ignored_order_of_devices_is_found(self):
        done = job.run(_PROGRAM, "--count=4", "--break-groups", devices_per_process=2)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertGreater(_summary(done.stdout)["wrong"], 0)


def _summary(output: str) -> dict:
    (line,) = [line for line in output.splitlines() if line.startswith("[0] {")]
    return json.loads(line.removeprefix("[0] "))


if __name__ == "__main__":
    absltest.main()
