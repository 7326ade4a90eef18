"""A rank may end before it has read its last results: its programs still run to their end."""

import job
from absl.testing import absltest, parameterized


class UnreadResultsTest(parameterized.TestCase):
    @parameterized.parameters(("jax_cxl", 1), ("jax_cxl", 2), ("lax", 1))
    def test_others_get_theirs(self, collectives, devices):
        result = job.run(
            *("failures/unread_results.py", collectives),
            devices_per_process=devices,
            launcher=() if collectives == "jax_cxl" else ("--replace-collectives",),
        )
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("[0] all steps", result.stdout)


if __name__ == "__main__":
    absltest.main()
