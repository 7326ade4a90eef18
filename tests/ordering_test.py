"""Independent collectives complete in whatever order XLA starts them on each rank."""

import tempfile

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

    @parameterized.parameters(False, True)
    def test_ranks_that_compile_different_programs(self, cached):
        # The second job is the one that could load from the cache what the first has compiled.
        folder = self.enter_context(tempfile.TemporaryDirectory())
        for _ in range(2 if cached else 1):
            done = job.run(
                "uneven_compilation.py", *([f"--cache={folder}"] if cached else []), processes=3
            )
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(done.stdout.count("right"), 3)


if __name__ == "__main__":
    absltest.main()
