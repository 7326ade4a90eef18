"""Random launches of threads, on ranks that differ in everything else, have right values."""

import re

import job
import pytest
from absl.testing import absltest, parameterized


def run(*options: str, processes: int = 2, programs: int = 0) -> list[tuple[int, int, str, str]]:
    """Returns how many sums were right and wrong, which launches failed, and how it ended.

    `programs` is how many programs XLA runs at once. 0: one on each core.
    """
    environment = {"NPROC": str(programs)} if programs else {}
    done = job.run(
        "identities.py", *options, processes=processes, environment=environment, timeout=200
    )
    assert done.returncode == 0, done.stdout + done.stderr
    ended = re.findall(r"(\d+) right, (\d+) wrong, failed \[(.*?)\], (.*)", done.stdout)
    assert len(ended) == processes, done.stdout + done.stderr
    return [(int(right), int(wrong), failed, end) for right, wrong, failed, end in ended]


class IdentitiesTest(parameterized.TestCase):
    @parameterized.parameters(False, True)
    def test_threads(self, replace):
        for ended in run("--launches=100", *["--replace"] * replace, programs=4):
            self.assertEqual(ended, (100, 0, "", "went on"))

    @parameterized.product(replace=(False, True), seed=(1, 2, 3, 4, 5))
    @pytest.mark.long
    def test_more_threads(self, replace, seed):
        options = [f"--seed={seed}", "--launches=400", "--threads=4", *["--replace"] * replace]
        for ended in run(*options, processes=3, programs=4):
            self.assertEqual(ended, (400, 0, "", "went on"))

    def test_more_threads_than_programs_at_once(self):
        # XLA chooses by itself which launches run first, on each rank differently. So the ranks
        # wait in different launches, if not by chance the same ones run first.
        ended = run("--launches=100", "--threads=4", processes=3, programs=1)
        self.assertLen({end.partition(":")[0] for _, _, _, end in ended}, 1)
        for _, wrong, _, end in ended:
            self.assertEqual(wrong, 0)
            if end != "went on":
                self.assertIn("set NPROC to their number", end)

    @parameterized.product(replace=(False, True), processes=(2, 3))
    def test_all_go_on_after_failures_on_all(self, replace, processes):
        options = ["--fail=all", "--in_step", "--launches=60", "--threads=1"]
        for right, wrong, failed, end in run(
            *options, *["--replace"] * replace, processes=processes
        ):
            failures = len(failed.split(","))
            self.assertGreater(failures, 1)
            self.assertEqual((right, wrong, end), (60 - failures, 0, "went on"))

    @parameterized.parameters("all", "one")
    def test_failures(self, fail):
        ended = run(f"--fail={fail}", "--launches=60", "--threads=1")
        for _, wrong, failed, _ in ended:
            self.assertEqual(wrong, 0)
            if fail == "all":
                self.assertNotEmpty(failed)
        # Either all ranks went on, or all of them got an error.
        self.assertLen({end.partition(":")[0] for _, _, _, end in ended}, 1)
        if fail == "one":
            self.assertStartsWith(ended[0][3], "stopped")


if __name__ == "__main__":
    absltest.main()
