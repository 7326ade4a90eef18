"""Independent collectives complete in whatever order XLA starts them on each rank."""

import job
from absl.testing import absltest, parameterized


class OrderingTest(parameterized.TestCase):
    @parameterized.parameters((1, 8), (2, 4), (4, 1))
    def test_skewed_ranks(self, processes, devices_per_process):
        # The acceptance run has --runs=100; a few find a wrong order just as well.
        done = job.run(
            "skewed_collectives.py",
            "--runs=8",
            processes=processes,
            devices_per_process=devices_per_process,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(f"8 runs right on {processes * devices_per_process} ranks", done.stdout)


if __name__ == "__main__":
    absltest.main()
