"""Independent collectives complete, although XLA starts them in a different order on each rank."""

import tempfile

import job
import pytest
from absl.testing import absltest, parameterized


class OrderingTest(parameterized.TestCase):
    @parameterized.parameters((1, 8), (2, 4), (4, 1))
    @pytest.mark.sample(2)
    def test_skewed_ranks(self, processes, devices_per_process):
        # By default --runs is 100. A few runs find a wrong order just as well.
        done = job.run(
            "skewed_collectives.py",
            "--runs=8",
            processes=processes,
            devices_per_process=devices_per_process,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(f"8 runs right on {processes * devices_per_process} ranks", done.stdout)

    @parameterized.product(cached=(False, True), replace=(False, True))
    @pytest.mark.sample(3)
    def test_ranks_that_compile_different_programs(self, cached, replace):
        folder = self.enter_context(tempfile.TemporaryDirectory())
        options = [f"--cache={folder}"] if cached else []
        if replace:
            options.append("--replace")
        # In the second job, rank 0 loads programs from its cache, and the others compile them.
        for second in (False, True) if cached else (False,):
            done = job.run("uneven_compilation.py", *options, processes=3)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(done.stdout.count("right"), 3)
            if second:
                self.assertRegex(done.stdout, r"\[0\] right, [1-9]\d* hits")
                self.assertRegex(done.stdout, r"\[1\] right, 0 hits")

    def test_a_cache_of_the_other_setting(self):
        folder = self.enter_context(tempfile.TemporaryDirectory())
        for options in ([], ["--replace"], [], ["--replace"]):
            done = job.run("uneven_compilation.py", f"--cache={folder}", *options)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(done.stdout.count("right"), 2)


if __name__ == "__main__":
    absltest.main()
