"""A short soak test with a fresh seed, which is printed."""

import job
import pytest
from absl.testing import absltest, parameterized


class SoakTest(parameterized.TestCase):
    @parameterized.parameters((1, 4), (2, 2))
    @pytest.mark.sample(2)
    def test_fresh_seed(self, processes, devices_per_process):
        done = job.run(
            "soak.py",
            f"--seconds={job.SECONDS}",
            processes=processes,
            devices_per_process=devices_per_process,
            quick=False,  # Programs have dtypes of all kinds.
        )
        print(done.stdout)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn('"wrong_elements": 0', done.stdout)


if __name__ == "__main__":
    absltest.main()
