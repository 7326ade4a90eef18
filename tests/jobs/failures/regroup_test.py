"""After an error the surviving processes continue."""

import re
import tempfile
import uuid

import jax
import job
import numpy as np
import ops_harness as harness
import pytest
from absl.testing import absltest, parameterized

import jax_cxl


def sums_of(lines: str, process: int) -> list[list[int]]:
    """Returns the ranks in each sum that `process` of programs/regroup/regroup.py printed."""
    found = re.findall(rf"^\[{process}\] sum \d+ of \[([\d, ]+)\]$", lines, re.MULTILINE)
    return [[int(rank) for rank in ranks.split(", ")] for ranks in found]


class SeveralProcessesTest(parameterized.TestCase):
    def run_job(
        self,
        *arguments: str,
        program: str = "regroup/regroup.py",
        launcher: tuple[str, ...] = ("--go-on",),
        processes: int = 3,
        devices_per_process: int = 1,
    ) -> str:
        name = f"regroup-{uuid.uuid4().hex[:8]}"
        done = job.run(
            program,
            f"--pool=shm:{name}",
            *arguments,
            processes=processes,
            devices_per_process=devices_per_process,
            launcher=launcher,
            timeout=200,
        )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEmpty(job.pool_files(name))
        return done.stdout

    @parameterized.parameters(([1], [0, 2]), ([0, 2], [1]))
    @pytest.mark.sample(2)
    def test_goes_on_without_the_lost(self, victims, left):
        said = self.run_job(f"--victims={','.join(map(str, victims))}", devices_per_process=2)
        for process in left:
            expected, alive = [[0, 1, 2, 3, 4, 5]], [0, 1, 2]
            for victim in victims:
                alive.remove(victim)
                expected.append([rank for p in alive for rank in (2 * p, 2 * p + 1)])
            self.assertEqual(sums_of(said, process), expected, said)
            self.assertIn(f"[{process}] done", said)
            refused = re.findall(rf"\[{process}\] old program: .* compiled before", said)
            self.assertLen(refused, len(victims))
            positions = sum(range(len(expected[-1])))
            self.assertIn(f"[{process}] without arguments: {positions}\n", said)

    @parameterized.parameters(
        (0, "joined"),
        (0, "decide"),
        (0, "decided"),
        (0, "registered"),
        (1, "join"),
        (1, "register"),
    )
    @pytest.mark.sample(3)
    def test_another_is_lost_while_regrouping(self, dies, moment):
        said = self.run_job("--victims=2", f"--dies={dies}", f"--moment={moment}")
        self.assertEqual(sums_of(said, 1 - dies)[-1], [1 - dies], said)
        self.assertIn(f"[{1 - dies}] done", said)

    def test_one_comes_after_the_others_have_given_up_the_new_pool(self):
        said = self.run_job(
            *("--victims=3", "--dies=1", "--moment=register", "--late=2"), processes=4
        )
        for process in (0, 2):
            self.assertEqual(sums_of(said, process)[-1], [0, 2], said)
            self.assertIn(f"[{process}] done", said)

    @parameterized.parameters(("0,2", [1]), ("2", [0, 1]), ("0", [1, 2]))
    @pytest.mark.sample(3)
    def test_initializes_again(self, victims, left):
        said = self.run_job(
            f"--victims={victims}", program="regroup/regroup_and_restart.py", devices_per_process=2
        )
        ranks = [rank for process in left for rank in (2 * process, 2 * process + 1)]
        for process in left:
            # The process printed one sum after its regroup. It printed two sums after it had
            # initialized again: of the old program and of a new one.
            self.assertEqual(sums_of(said, process)[-3:], [ranks] * 3, said)
            self.assertIn(f"[{process}] sum {sum(ranks)} of {ranks}", said)
            self.assertIn(f"[{process}] done", said)

    def test_shuts_down_before_it_regroups(self):
        done = job.run(
            "regroup/regroup_and_restart.py",
            *("--victims=1", "--shut_down_first"),
            processes=3,
            launcher=("--go-on",),
            timeout=100,
        )
        self.assertNotEqual(done.returncode, 0)
        for process, other in ((0, 2), (2, 0)):
            # This process may learn of the loss before it shuts down. By then the other survivor
            # may have ended too, with the same error. Or this process shuts down first, and then
            # process 1 does not come to the next start of jax_cxl.
            lost = f"(rank 1 was|ranks {min(1, other)}, {max(1, other)} were) lost"
            self.assertRegex(
                done.stderr,
                rf"\[{process}\] .*NotInitializedError: ({lost} before jax_cxl.shutdown\(\)"
                r".*call jax_cxl.regroup\(\) before|process 1 .* ended before jax_cxl had started)",
            )

    def test_one_that_lives_but_does_not_come(self):
        folder = self.enter_context(tempfile.TemporaryDirectory())
        done = job.run(
            "regroup/regroup_without.py",
            f"--folder={folder}",
            processes=3,
            launcher=("--go-on",),
            timeout=100,
        )
        for process in (0, 1):
            self.assertRegex(
                done.stdout,
                rf"\[{process}\] rank 2 \(pid \d+ on host .*\) lives, but has not called",
            )
            self.assertIn(f"[{process}] sum 1", done.stdout, done.stderr)

    def test_stores_and_tables_go_on(self):
        said = self.run_job(program="regroup/store.py")
        for process in (0, 1):
            self.assertIn(f"[{process}] rank 2 was lost before it had written", said)
            self.assertRegex(said, rf"\[{process}\] version \d: {re.escape(str([*range(12)]))}\n")
            self.assertIn(f"[{process}] step 2: [2, 2, 1]\n", said)


class OneProcessTest(absltest.TestCase):
    def test_all_things_new(self):
        x = harness.values(2)
        program = harness.program(lambda v: jax_cxl.psum(v, "i"), check_vma=True)
        before = np.asarray(program(x))
        self.assertEqual(jax_cxl.regroup(), jax.devices())
        np.testing.assert_array_equal(program(x), before)

    def test_needs_a_runtime(self):
        jax_cxl.shutdown()
        with self.assertRaisesRegex(jax_cxl.NotInitializedError, "before jax_cxl.shutdown"):
            jax_cxl.regroup()

    def test_a_pool_that_cannot_be_made(self):
        jax_cxl.initialize()
        with self.assertRaises(jax_cxl.PoolError):
            jax_cxl.regroup(pool="file:/no/such/folder/pool?size=64MiB")
        self.assertEqual(jax_cxl.regroup(), jax.devices())


if __name__ == "__main__":
    absltest.main()
