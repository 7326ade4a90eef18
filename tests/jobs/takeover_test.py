"""Collectives of programs of several processes that jax.jit makes of shardings."""

import job
from absl.testing import absltest, parameterized


class TakeoverTest(parameterized.TestCase):
    @parameterized.parameters((2, 1), (2, 2))
    def test_all_and_any(self, processes, devices_per_process):
        done = job.run(
            "all_and_any.py", processes=processes, devices_per_process=devices_per_process
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.count("14 reductions right: pand, por"), processes)


if __name__ == "__main__":
    absltest.main()
