"""Jobs of several processes train a table together."""

import tempfile

import job
from absl.testing import absltest


class TablesTest(absltest.TestCase):
    def test_steps_of_a_job_are_those_of_one_device(self):
        with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
            where = f"--where=file:{folder}/a?size=32MiB"
            done = job.run("tables/train.py", where, modules=("jax_cxl",))
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertEqual(done.stdout.count("done with"), 2)


if __name__ == "__main__":
    absltest.main()
