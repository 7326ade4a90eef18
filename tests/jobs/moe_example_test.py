"""Runs examples/train_moe.py for some steps, started as its users start it."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
from absl.testing import absltest

_SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "examples" / "train_moe.py"
_FLAGS = (
    *("--steps=6", "--learning_rate=0.01", "--batch_size=4", "--sequence_length=32"),
    *("--layers=1", "--width=16", "--heads=2", "--evaluate_every=3", "--evaluate_size=4"),
)


def _train(exchange, folder, *flags):
    path = pathlib.Path(folder) / f"{exchange}.json"
    run = subprocess.run(
        [
            *(sys.executable, "-m", "jax_cxl.launch", "-n", "2", str(_SCRIPT), *_FLAGS, *flags),
            *(f"--exchange={exchange}", f"--json={path}"),
        ],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return json.loads(path.read_text())


def _losses(figures):
    return np.array(figures["train_loss"] + figures["heldout_nats_per_byte"])[:, 1]


class MoeExampleTest(absltest.TestCase):
    def test_exchanges_agree(self):
        """With room for everything all compute the same."""
        with tempfile.TemporaryDirectory() as folder:
            names = ("dispatch", "halves", "ragged", "dense-lax")
            found = [_losses(_train(name, folder, "--capacity_factor=8")) for name in names]
        self.assertLess(found[0][5], found[0][0] - 0.2)
        for losses in found[1:]:
            np.testing.assert_allclose(found[0], losses, rtol=1e-4)

    def test_experts_move_between_steps(self):
        """The losses stay, and fewer tokens cross than without moves."""
        with tempfile.TemporaryDirectory() as folder:
            still = _train("dispatch", folder, "--layers=2")
            moved = _train("dispatch", folder, "--layers=2", "--place_every=2")
        np.testing.assert_allclose(_losses(moved), _losses(still), rtol=1e-5)
        self.assertEmpty(still["placements"])
        places = moved["placements"]
        self.assertEqual([place["step"] for place in places], [2, 4, 6])
        self.assertLess(places[0]["largest_load_after"], places[0]["largest_load_before"] + 0.05)
        # Later counts are those of the next batch, so the first move changes most.
        self.assertNotEqual(places[0]["crossing_after"], places[0]["crossing_before"])

    def test_moves_need_the_pool(self):
        with (
            tempfile.TemporaryDirectory() as folder,
            self.assertRaisesRegex(AssertionError, "needs an exchange of jax_cxl"),
        ):
            _train("dense-lax", folder, "--place_every=2")


if __name__ == "__main__":
    absltest.main()
