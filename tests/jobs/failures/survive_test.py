"""Runs examples/survive.py: kills do not change the loss."""

import pathlib
import re
import tempfile

import job
from absl.testing import absltest

_SCRIPT = pathlib.Path(__file__).resolve().parents[3] / "examples" / "survive.py"
_KILLS = 2


def loss_after(kills: int) -> tuple[str, str]:
    """Returns the loss, to the last bit, and what the launcher and the ranks printed."""
    with tempfile.TemporaryDirectory() as folder:
        done = job.launch(
            *("-n", "2", f"--restarts={kills}", "--grace=0.5", str(_SCRIPT)),
            *(f"--kills={kills}", "--steps=60", f"--checkpoint={folder}/state.npz"),
            f"--snapshots=file:{folder}/snapshots?size=32MiB",
            environment=job.quick_environment(),
            modules=("jax.numpy", "absl.app"),
            timeout=200,
        )
    found = re.search(rf"loss (\S+) after 60 steps and {kills} kills", done.stdout)
    assert done.returncode == 0 and found, done.stderr
    return found.group(1), done.stdout + done.stderr


class SurviveTest(absltest.TestCase):
    def test_kills_do_not_change_the_loss(self):
        undisturbed, _ = loss_after(0)
        disturbed, said = loss_after(_KILLS)
        self.assertEqual(disturbed, undisturbed)
        self.assertEqual(said.count("was killed by SIGKILL; ending the others"), _KILLS)
        # Some ranks continued from a later step than 0. They did so from the pool, because the
        # first checkpoint on the disk would come at step 100.
        self.assertGreater(said.count("continues from step "), said.count("continues from step 0"))


if __name__ == "__main__":
    absltest.main()
