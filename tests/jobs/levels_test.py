"""Collectives in levels have the bits of the NumPy model, over each subset of a mesh's axes."""

import json
import pathlib
import tempfile

import job
import pytest
from absl.testing import absltest, parameterized

# Jobs spend most of their time on compiling the code around the collectives. Without most
# optimizations XLA compiles it faster.
_ENVIRONMENT = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}


class LevelsTest(parameterized.TestCase):
    @parameterized.parameters(
        (2, 4, "2,4", "(2, 4)"), (4, 2, "4,2", "(4, 2)"), (2, 4, "2,2,2", "(2, 2, 2)")
    )
    @pytest.mark.sample(3)
    def test_subsets_of_axes(self, processes, devices_per_process, shape, name):
        done = job.run(
            "levels/run_levels.py",
            f"--mesh={shape}",
            processes=processes,
            devices_per_process=devices_per_process,
            environment=_ENVIRONMENT,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.count(f"cells right on a mesh {name}"), processes)

    def test_bytes_and_messages(self):
        done = job.run("levels/count_traffic.py", processes=2, devices_per_process=4)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.count("traffic right"), 2)

    def test_takeover(self):
        # This tuning table lowers the size from which sums run in levels. With the built-in size,
        # the test would take long.
        with tempfile.TemporaryDirectory() as folder:
            table = pathlib.Path(folder) / "table.json"
            table.write_text(json.dumps({"tuning": {"levels_all_reduce_bytes": 1 << 21}}))
            done = job.run(
                "levels/take_over.py",
                processes=2,
                devices_per_process=4,
                environment={"JAX_CXL_TUNING": str(table)},
            )
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.count("taken over in levels"), 2)


if __name__ == "__main__":
    absltest.main()
