"""lab/fuzz/fuzz_moe.py and benchmarks/models/moe.py, as their users start them."""

import json
import pathlib

import job
import pytest
from absl.testing import absltest

_BENCHMARKS = pathlib.Path(__file__).resolve().parents[2] / "benchmarks"


def _launch(*command, devices=1):
    return job.launch(
        *("-n", "2", "--no-prefix", "--devices-per-process", str(devices), *command),
        environment=job.quick_environment(),
        modules=("jax.numpy", "absl.app"),
    )


class MoeTest(absltest.TestCase):
    def test_random_cases(self):
        cases = int(15 * job.SECONDS)
        run = _launch(
            *("-m", "lab.fuzz.fuzz_moe", f"--cases={cases}", "--routings=20"),
            devices=2,
        )
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        self.assertIn('"wrong_seeds": []', run.stdout)

    @pytest.mark.long
    def test_a_wrong_sum_is_found(self):
        run = _launch(*("-m", "lab.fuzz.fuzz_moe", "--cases=10", "--routings=10", "--break"))
        self.assertNotEqual(run.returncode, 0)
        self.assertIn("seed 0: ['sums']", run.stdout)

    @pytest.mark.long
    def test_benchmark(self):
        run = _launch(
            *(str(_BENCHMARKS / "models/moe.py"), "--sizes=64KiB", "--routings=uniform,hot"),
            "--repeats=1",
        )
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        lines = [line for line in run.stdout.splitlines() if line.startswith("{")]
        rows = [json.loads(line) for line in lines]
        self.assertLen(rows, 2 * 4)
        for row in rows:
            self.assertEqual(row["wrong"], 0, row)
        written = {(row["routing"], row["way"]): sum(row["bytes_written"]) for row in rows}
        # With two ranks, 11 of 14 tokens choose an expert of the other rank. `dispatch` sends each
        # of them once. `ragged` sends a row for each choice of such an expert, which makes 14 rows.
        share = written["uniform", "dispatch"] / written["uniform", "ragged"]
        self.assertLess(share, 0.9)
        self.assertEqual(written["uniform", "dense-lax"], 0)


if __name__ == "__main__":
    absltest.main()
