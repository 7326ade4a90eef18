"""Runs examples/train_moe.py for some steps, started as its users start it."""

import functools
import json
import pathlib
import tempfile

import job
import numpy as np
import pytest
from absl.testing import absltest

_SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "examples" / "train_moe.py"
_FLAGS = (
    *("--steps=6", "--learning_rate=0.01", "--batch_size=4", "--sequence_length=32"),
    *("--layers=1", "--width=16", "--heads=2", "--evaluate_every=3", "--evaluate_size=4"),
    "--capacity_factor=8",
)


def _train(exchange, folder, *flags, processes=1):
    """Trains on two devices. Each process compiles the step, so one process is fastest."""
    path, corpus = (pathlib.Path(folder) / name for name in (f"{exchange}.json", "corpus.txt"))
    corpus.write_text(
        "".join(f"{i} squared is {i * i}, cubed it is {i**3}.\n" for i in range(1000))
    )
    run = job.launch(
        *("-n", str(processes), "--devices-per-process", str(2 // processes)),
        *(str(_SCRIPT), *_FLAGS, *flags),
        *(f"--exchange={exchange}", f"--json={path}", f"--corpus={corpus}"),
        environment=job.quick_environment(),
        modules=("jax.numpy", "optax", "absl.app"),
        timeout=240,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return json.loads(path.read_text())


@functools.cache
def _dispatch():
    """Trains with dispatch and combine, and with room for all tokens."""
    with tempfile.TemporaryDirectory() as folder:
        return _train("dispatch", folder)


def _losses(figures):
    return np.array(figures["train_loss"] + figures["heldout_nats_per_byte"])[:, 1]


class MoeExampleTest(absltest.TestCase):
    def test_exchanges_agree(self):
        """All exchanges give the same losses, because no expert runs out of room for tokens."""
        self.check_exchange("dense-lax")

    @pytest.mark.long
    def test_other_exchanges_agree(self):
        self.check_exchange("ragged")
        self.check_exchange("halves", processes=2)

    def check_exchange(self, name, **options):
        with tempfile.TemporaryDirectory() as folder:
            losses = _losses(_train(name, folder, **options))
        dispatch = _losses(_dispatch())
        self.assertLess(dispatch[5], dispatch[0] - 0.2)
        np.testing.assert_allclose(dispatch, losses, rtol=1e-4)

    @pytest.mark.long
    def test_experts_move_between_steps(self):
        """Moves of experts keep the losses, and change how many tokens go to another rank."""
        with tempfile.TemporaryDirectory() as folder:
            moved = _train("dispatch", folder, "--place_every=2", processes=2)
        still = _dispatch()
        np.testing.assert_allclose(_losses(moved), _losses(still), rtol=1e-5)
        self.assertEmpty(still["placements"])
        places = moved["placements"]
        self.assertEqual([place["step"] for place in places], [2, 4, 6])
        self.assertLess(places[0]["largest_load_after"], places[0]["largest_load_before"] + 0.05)
        # Later moves start from the places that the previous move chose, so they may change little.
        # Only the first move has to change the number of crossing tokens.
        self.assertNotEqual(places[0]["crossing_after"], places[0]["crossing_before"])

    def test_moves_need_the_pool(self):
        with (
            tempfile.TemporaryDirectory() as folder,
            self.assertRaisesRegex(AssertionError, "needs an exchange of jax_cxl"),
        ):
            _train("dense-lax", folder, "--place_every=2")


if __name__ == "__main__":
    absltest.main()
