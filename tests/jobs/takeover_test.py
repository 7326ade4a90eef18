"""Programs of several processes whose collectives are taken over."""

import tempfile

import job
import pytest
from absl.testing import absltest, parameterized

REPLACED = {"JAX_CXL_REPLACE_COLLECTIVES": "strict"}
MEETING = "jax_cxl._job.meeting"


class TakeoverTest(parameterized.TestCase):
    @parameterized.parameters((2, 2), (2, 1))
    @pytest.mark.sample(2)
    def test_all_and_any(self, processes, devices_per_process):
        done = job.run(
            "all_and_any.py", processes=processes, devices_per_process=devices_per_process
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.count("14 reductions right: pand, por"), processes)

    def test_state_in_host_memory(self):
        done = job.run("takeover/host_memory.py", environment=REPLACED)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.count("right, in pinned_host"), 2)
        says = "the collectives of these 2 ranks go through the pool (shm:); JAX_CXL_LOG=info"
        self.assertEqual(done.stderr.count(says), 1, done.stderr)


class LoadedProgramsTest(parameterized.TestCase):
    def load(self, mode, folder, environment=REPLACED, **options):
        cache = {
            "JAX_COMPILATION_CACHE_DIR": f"{folder}/cache",
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
        done = job.run(
            *("takeover/loaded.py", mode, folder), environment=environment | cache, **options
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_programs_of_an_earlier_job_come_first(self):
        folder = self.enterContext(tempfile.TemporaryDirectory())
        # Each of three rounds runs three programs, with one, one and two calls. `save` and `cached`
        # make one more call before the rounds.
        out = self.load("save", folder)
        self.assertEqual(out.count("right: 13 calls"), 2, out)
        out = self.load("load", folder)
        self.assertEqual(out.count("right: 12 calls"), 2, out)
        # An exit handler prints this. It runs after jax_cxl has stopped.
        self.assertEqual(out.count("12 calls in all"), 2, out)
        out = self.load("cached", folder)
        # Only process 0 finds the program in its cache. The other process compiles it.
        self.assertRegex(out, r"\[0\] [1-9] hits")
        self.assertEqual(out.count("right: 13 calls"), 2, out)
        self.assertEqual(out.count("for the devices [0, 2048] in this order"), 2, out)
        out = self.load("load", folder, environment={})
        self.assertEqual(out.count("right: 12 calls"), 2, out)

    def test_programs_for_other_ranks_are_refused(self):
        folder = self.enterContext(tempfile.TemporaryDirectory())
        self.load("save", folder, devices_per_process=2)
        out = self.load("other_job", folder)
        self.assertEqual(out.count("its devices were the ranks [0, 2]"), 6, out)


class EarlyEndTest(parameterized.TestCase):
    @parameterized.parameters(
        (f"{MEETING}.connection.connect", "returns", 0),
        (f"{MEETING}.arrival.begin", "raises", 1),
        (f"{MEETING}.meetings.come_together", "exits", 3),
        ("jax_cxl._job.pool.pools.register", "returns", 0),
        ("jax_cxl._core.start", "interrupted", 130),
        (f"{MEETING}.meetings.remember", "raises", 1),
    )
    @pytest.mark.sample(4)
    def test_the_program_ends_while_jax_cxl_starts(self, stage, ending, status):
        # This uses new interpreters, because forks do not end as interpreters do.
        done = job.run("takeover/ends_early.py", stage, ending, environment=REPLACED, forked=False)
        self.assertEqual(done.returncode, status, done.stderr)
        self.assertEqual(done.stdout.count("2 devices"), 2)
        # These are the lines of the ranks, without JAX's message that the launcher ends a rank, and
        # without the line that names the pool.
        others = ("preemption_notifier", "go through the pool")
        lines = [
            line
            for line in done.stderr.splitlines()
            if line.startswith("[") and not any(other in line for other in others)
        ]
        last = {"raises": "ValueError: of the user", "interrupted": "KeyboardInterrupt"}
        if ending in last:
            self.assertTrue(lines[-1].endswith(last[ending]), done.stderr)
            self.assertEqual(done.stderr.count("Traceback"), done.stderr.count(f"] {last[ending]}"))
        else:
            self.assertEqual(lines, [])


if __name__ == "__main__":
    absltest.main()
