"""Runs the examples that show jax_cxl beside another library, for a few steps."""

import importlib.util
import pathlib
import re

import job
import pytest
import shared_folder
from absl.testing import absltest

_EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"


def _run(script: str, *arguments: str, ranks: int = 2, replace: str = "") -> str:
    done = job.launch(
        *("-n", str(ranks), str(_EXAMPLES / script), *arguments),
        environment=job.quick_environment() | {"JAX_CXL_REPLACE_COLLECTIVES": replace},
        modules=("jax.numpy", "optax", "absl.app", "flax.nnx"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _losses(said: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"loss (\S+)", said)]


class CopiedExamplesTest(absltest.TestCase):
    def test_flax_nnx_has_the_same_losses_through_the_pool(self):
        ours = _run("flax_nnx.py", "--steps=60", replace="strict")
        losses = _losses(ours)
        self.assertLess(losses[-1], 0.8 * losses[0])
        alone = _losses(_run("flax_nnx.py", "--steps=1", ranks=1))
        self.assertAlmostEqual(losses[0], alone[0], delta=2e-4)

    @pytest.mark.long
    def test_generate_says_the_same_without_a_cache(self):
        said = _run("generate.py", "--tokens=12")
        self.assertIn("12 bytes, 0 differ", said)
        self.assertGreater(len(set(re.findall(r"import jax(.*)'", said)[0])), 3, said)

    @pytest.mark.long
    def test_orbax_continues_from_the_newer_of_disk_and_pool(self):
        with shared_folder.folder() as folder:

            def steps(count: int, place: str, ranks: int = 2) -> str:
                return _run(
                    *("orbax_checkpoints.py", f"--folder={folder}/disk", "--every=4"),
                    *(f"--snapshots=file:{folder}/{place}?size=32MiB", f"--steps={count}"),
                    ranks=ranks,
                )

            self.assertIn("continues from step 0", steps(6, "pool"))
            through_pool = steps(9, "pool")
            self.assertIn("continues from step 6", through_pool)
            # This memory is new, as if the pool's memory had been lost. So the example continues
            # from the disk, with three ranks instead of two.
            from_disk = steps(9, "new", ranks=3)
            self.assertIn("continues from step 8", from_disk)
            self.assertAlmostEqual(*_losses(through_pool), *_losses(from_disk), delta=1e-5)

    @absltest.skipUnless(importlib.util.find_spec("torch"), "PyTorch is not installed")
    def test_torch_ranks_have_the_same_weights(self):
        said = _run("torch_dlpack.py", "--steps=60")
        losses = _losses(said)
        self.assertLess(losses[-1], 0.5 * losses[0])
        sums = re.findall(r"add up to (\S+)", said)
        self.assertLen(sums, 2)
        self.assertEqual(*sums)


if __name__ == "__main__":
    absltest.main()
