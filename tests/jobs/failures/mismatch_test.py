"""If ranks call different collectives, all raise an error with both calls and their lines."""

import json
import re

import job
import pytest
from absl.testing import absltest, parameterized

_PROGRAM = job.PROGRAMS / "failures/mismatch.py"


def site(function: str) -> str:
    """Returns a pattern for the line of mismatch.py on which `function` calls its collective."""
    lines = _PROGRAM.read_text().splitlines()
    (number,) = (i for i, line in enumerate(lines, 1) if line.endswith(f"  # {function}"))
    return rf"mismatch\.py:{number} \({function}\)"


def run(case: str, processes: int, **options) -> dict[int, dict]:
    """Runs a case of mismatch.py; returns the exception that each process caught, by rank."""
    done = job.run(
        "failures/mismatch.py", f"--case={case}", processes=processes, timeout=60, **options
    )
    caught = [json.loads(text) for text in re.findall(r"caught (\{.*\})", done.stdout)]
    assert len(caught) == processes, done.stderr
    return {each["rank"]: each for each in caught}


# Each line has the name of a case of mismatch.py, the functions that rank 0 and another rank call,
# and what the error must say about the calls of rank 0 and of the other rank.
CASES = (
    ("without_jit", "psum", "pmax", "all_reduce sum", "all_reduce max"),
    ("dtype", "psum", "psum", "4 float32", "4 int32"),
    ("eager", "psum", "psum", "4 float32", "65536 float32"),
    ("root", "from_0", "from_1", "root 0", "root 1"),
    ("permutation", "forward", "backward", "ppermute", "ppermute"),
    ("order", "psum", "pmax", "all_reduce sum", "all_reduce max"),
    ("order_in_program", "psum", "pmax", "all_reduce sum", "all_reduce max"),
    ("branch", "psum", "pmax", "all_reduce sum", "all_reduce max"),
    ("number_then_another", "psum", "pmax", "all_reduce sum", "all_reduce max"),
)
# In each of these cases, the two calls differ in one field of their descriptors. Tests in C++ cover
# every field.
FIELDS = (
    ("operation", "psum", "all_gather", "psum: all_reduce", "all_gather: all_gather"),
    ("reduction", "psum", "pmax", "all_reduce sum", "all_reduce max"),
    ("count", "psum", "psum", "4 float32", "3 float32"),
)
_OF_TWO = ("operation", "order")


class MismatchTest(parameterized.TestCase):
    @parameterized.parameters(*CASES)
    def test_different_calls(self, *case):
        self.check(*case, processes=3)

    @parameterized.parameters(*FIELDS)
    @pytest.mark.long
    def test_different_fields(self, *case):
        self.check(*case, processes=3)

    @parameterized.parameters(*(case for case in (*FIELDS, *CASES) if case[0] in _OF_TWO))
    def test_of_two_ranks(self, *case):
        self.check(*case, processes=2)

    def test_different_groups(self):
        self.check("group", "psum", "psum", "ranks 0 1", "ranks 0 1 2", 3)

    @parameterized.parameters("levels", "levels_of_one_element", "levels_branch")
    @pytest.mark.sample(3)
    def test_levels(self, case):
        caught = run(case, 2, devices_per_process=2)
        began = max(each["at"][0] for each in caught.values())
        for rank, error in caught.items():
            self.assertIn("text", error, f"process {rank} finished")
            self.assertLess(error["at"][1] - began, job.SOON)
            self.assertLen(set(error["ranks"]), 2)
            (levels,) = (call for call in error["calls"] if "in levels" in call)
            (flat,) = (call for call in error["calls"] if "in levels" not in call)
            self.assertRegex(levels, f"psum: .* at .*{site('in_levels')}")
            self.assertRegex(flat, f"psum: .* at .*{site('flat')}")

    def check(self, case, one, other, one_says, other_says, processes):
        caught = run(case, processes)
        began = max(each["at"][0] for each in caught.values())
        for rank, error in caught.items():
            self.assertIn("text", error, f"rank {rank} finished")
            advice = "All ranks have to run the same programs, with the same shapes and in the same"
            self.assertIn(f"{advice} order", error["text"])
            self.assertLess(error["at"][1] - began, job.SOON)
            calls = dict(zip(error["ranks"], error["calls"], strict=True))
            self.assertLen(calls, 2)
            sides = [(one, one_says, calls.pop(0)), (other, other_says, *calls.values())]
            for function, says, call in sides:
                self.assertIn(says, call)
                self.assertRegex(call, f" at .*{site(function)}")
            for side in error["calls"]:
                self.assertIn(side, error["text"])

    @parameterized.parameters("number", "loop")
    def test_rank_that_has_ended(self, case):
        caught = run(case, 3)
        for rank in (1, 2):
            self.assertNotIn("text", caught[rank])
        error = caught[0]
        self.assertLess(error["at"][1] - max(caught[rank]["at"][1] for rank in (1, 2)), job.SOON)
        self.assertRegex(error["text"], r"rank \d .* ended normally, after 3 collectives")
        self.assertRegex(error["calls"][0], f"all_reduce sum of 4 float32 at .*{site('psum')}")
        self.assertEqual(error["calls"][1], "none: it ended after 3 collectives")

    @parameterized.parameters("late", "line")
    @pytest.mark.sample(2)
    def test_no_mismatch(self, case):
        for error in run(case, 3).values():
            self.assertNotIn("text", error)

    @parameterized.parameters((), ("--go-on",))
    def test_shutdown_and_initialize_start_anew(self, *launcher):
        done = job.run("failures/initialize_after_mismatch.py", launcher=launcher, timeout=100)
        self.assertEqual(done.returncode, 0, done.stderr)
        for process in range(2):
            self.assertEqual(done.stdout.count(f"[{process}] mismatch"), 2, done.stdout)
            for x in range(3):
                line = f"[{process}] sum {2.0 * x}, max {1.0 * x}"
                self.assertEqual(done.stdout.count(line), 2, done.stdout)


if __name__ == "__main__":
    absltest.main()
