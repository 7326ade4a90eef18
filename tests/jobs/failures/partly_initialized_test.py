"""Jobs in which only some ranks call `initialize`, or ranks use jax_cxl after `shutdown`."""

import job
from absl.testing import absltest, parameterized


class PartlyInitializedTest(parameterized.TestCase):
    def run_job(self, how, *, seconds=600, **options):
        return job.run(
            "failures/partly_initialized.py",
            how,
            environment={"JAX_CXL_CONNECT_TIMEOUT": str(seconds)},
            **options,
        )

    def test_a_rank_that_runs_a_job_of_its_own(self):
        ended = self.run_job("alone")
        self.assertIn("[0] caught rank 1 ended without calling jax_cxl.initialize()", ended.stdout)
        self.assertEqual(ended.returncode, 3)
        # Rank 1 runs a job of its own, and a warning tells it that it is alone.
        self.assertIn("[1] total 0.0", ended.stdout)
        self.assertIn(
            "[1] jax_cxl: warning: this is one of several processes (JAX_CXL_LAUNCH_SIZE=2)",
            ended.stderr,
        )

    def test_a_rank_that_is_connected_and_does_not_come(self):
        ended = self.run_job("never", seconds=4)
        self.assertIn("[0] caught process 1 did not call jax_cxl.initialize()", ended.stdout)
        self.assertNotIn("several processes (", ended.stderr)

    def test_a_rank_that_initializes_when_it_lowers_a_collective(self):
        ended = self.run_job("lowers", seconds=60)
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertCountEqual(ended.stdout.split(), ["[0]", "total", "1.0", "[1]", "total", "1.0"])

    @parameterized.parameters((1, 4), (2, 1), (2, 2))
    def test_use_after_shutdown(self, processes, devices):
        ended = self.run_job("shutdown", processes=processes, devices_per_process=devices)
        self.assertEqual(ended.stdout.count("call jax_cxl.initialize() first"), processes)
        self.assertNotIn("again", ended.stdout)

    def test_a_group_of_one_rank_needs_no_pool(self):
        ended = self.run_job("shutdown", processes=1)
        self.assertEqual(ended.stdout.split(), ["total", "0.0", "again", "0.0"])

    def test_initialize_leaves_the_configuration_of_jax(self):
        ended = self.run_job("config")
        self.assertEqual(ended.stdout.count("changed []"), 2, ended.stdout)


if __name__ == "__main__":
    absltest.main()
