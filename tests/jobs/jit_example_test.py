"""Runs examples/train_jit.py with XLA's own collectives and through the pool."""

import json
import pathlib
import re
import tempfile

import job
import numpy as np
import pytest
from absl.testing import absltest

_STEPS = 4
_PROCESSES, _DEVICES = 2, 2
# Each of four devices gets two sequences. Two or four devices can share the widths equally.
_FLAGS = (
    *(f"--steps={_STEPS}", "--learning_rate=0.01", "--batch_size=8", "--sequence_length=16"),
    *("--layers=1", "--width=32", "--heads=2", "--evaluate_every=4", "--evaluate_size=4"),
)
_CURVES = ("train_loss", "gradient_norm", "heldout_nats_per_byte")


class JitExampleTest(absltest.TestCase):
    def train(self, *flags, replace, quick, processes=_PROCESSES):
        """Returns the curves of a run, and the line that each process prints at its end."""
        folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
        corpus, figures = folder / "corpus.txt", folder / "figures.json"
        corpus.write_text("".join(f"{i} squared is {i * i}.\n" for i in range(200)))
        done = job.run(
            "train_jit.py",
            *(*_FLAGS, *flags, f"--corpus={corpus}", f"--json={figures}"),
            processes=processes,
            devices_per_process=_PROCESSES * _DEVICES // processes,
            environment={
                "JAX_DISABLE_MOST_OPTIMIZATIONS": "True",
                "JAX_CXL_REPLACE_COLLECTIVES": "strict" if replace else "",
            },
            modules=("optax", "rich.progress"),
            quick=quick,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        found = json.loads(figures.read_text())
        moved_by = "jax_cxl" if replace else "XLA"
        self.assertEqual(found["data_moved_by"], moved_by)
        self.assertIn(f"inserted by XLA, data moved by {moved_by},", done.stdout)
        curves = {name: np.array(found[name])[:, 1] for name in _CURVES}
        self.assertLen(curves["train_loss"], _STEPS)
        return curves, re.findall(r"process \d: (.*)", done.stdout)

    # The tolerance is 0 where all sums are over two devices, because the order of two addends does
    # not matter. It matters in sums over four devices. Where there is a tolerance, the programs
    # compile quickly, which also changes the rounding.
    def test_same_losses_through_the_pool_fsdp(self):
        self.check_losses(1, 1e-5)

    @pytest.mark.long
    def test_same_losses_through_the_pool_tensor_and_data_parallel(self):
        self.check_losses(2, 0)

    def check_losses(self, tensor_parallel, tolerance):
        flag = f"--tensor_parallel={tensor_parallel}"
        quick = tolerance > 0
        # Each process compiles the program, so the run with XLA's own collectives takes half of the
        # time in one process. But that run adds in another order, which is fine only with a
        # tolerance.
        processes = _PROCESSES if tolerance == 0 else 1
        own, lines = self.train(flag, replace=False, quick=quick, processes=processes)
        self.assertEqual(lines, ["0 taken, 0 left, 0 calls"] * processes)
        ours, lines = self.train(flag, replace=True, quick=quick)
        for name in _CURVES:
            np.testing.assert_allclose(ours[name], own[name], rtol=tolerance, err_msg=name)
        self.assertLen(lines, 2)
        for line in lines:
            taken, left, calls = map(int, re.findall(r"\d+", line))
            self.assertGreater(taken, 0, line)
            self.assertEqual(left, 0, line)
            # A step has several collectives, and each rank executes each of them in each step.
            self.assertGreater(calls, _STEPS * _DEVICES, line)
        self.assertLess(own["train_loss"][-1], own["train_loss"][0])


if __name__ == "__main__":
    absltest.main()
