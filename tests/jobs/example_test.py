"""Runs examples/train_transformer.py for some steps, started as its users start it."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import job
import numpy as np
import pytest
from absl.testing import absltest, parameterized

_SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "examples" / "train_transformer.py"
_COMPARE = _SCRIPT.with_name("compare_losses.py")
_STEPS = 50
_CHECKPOINT_STEP = 30
_TIMEOUT_SECONDS = 240

# Four devices cannot share evenly the 6 sequences of a batch or the 5 of an evaluation. The example
# adds rows of padding, which must not count in the losses.
_FLAGS = (
    *(f"--steps={_STEPS}", "--learning_rate=0.01", "--batch_size=6", "--sequence_length=48"),
    *("--layers=2", "--width=32", "--heads=2", "--evaluate_every=10", "--evaluate_size=5"),
)

_FIGURES = {
    *("train_loss", "heldout_nats_per_byte", "gradient_norm", "bigram_nats_per_byte"),
    *("tokens_per_second", "train_seconds", "compile_seconds", "peak_bytes"),
    *("bytes_through_pool", "communication_seconds", "pool_figures"),
    *("steps", "seed", "batch_size", "sequence_length", "learning_rate", "dtype"),
    *("layers", "width", "heads", "parameters", "evaluate_every", "evaluate_size", "prefetch"),
    "shard",
    *("corpus", "corpus_sha256", "train_bytes", "heldout_bytes", "resumed_after_step"),
    *("collectives", "data_moved_by", "processes", "devices", "device_kind", "versions"),
}

# train_transformer.py reports these figures, train_jit.py does not.
_FIGURES_OF_COLLECTIVES = {
    *("bytes_through_pool", "communication_seconds", "pool_figures", "prefetch", "shard"),
}

_SPEED_FIGURES = {
    *("step_ms", "step_ms_without_communication", "communication_ms"),
    *("exposed_communication_share", "hidden_communication_share"),
}


# Runs a program as if jax_cxl were not installed.
_HIDE = """
import runpy, sys
sys.modules["jax_cxl"] = None
del sys.argv[0]
sys.path[0] = sys.argv[0].rpartition("/")[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def _start(
    *flags, devices=4, processes=1, optimized=False, script=_SCRIPT, hidden=False, launched=True
):
    """Runs the example and waits for it.

    Args:
      *flags: flags of the example.
      devices: the devices of each process.
      processes: the number of processes.
      optimized: whether XLA optimizes as for users.
      script: the example.
      hidden: whether it runs as if jax_cxl were not installed.
      launched: whether the launcher starts it; otherwise a new interpreter starts it directly.
    """
    environment = (os.environ if optimized else job.quick_environment()) | {
        "JAX_PLATFORMS": "cpu",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": str(not optimized),
    }
    command = (str(script), *_FLAGS, *flags)
    if launched and not hidden:
        return job.launch(
            *("-n", str(processes), "--devices-per-process", str(devices), *command),
            environment=environment,
            modules=("jax.numpy", "optax", "absl.app"),
            timeout=_TIMEOUT_SECONDS,
        )
    return subprocess.run(
        [sys.executable, *(("-c", _HIDE) if hidden else ()), *command],
        env=environment | {"JAX_NUM_CPU_DEVICES": str(devices)},
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_SECONDS,
    )


def _losses(figures):
    """Returns the losses of steps 1, 2, ..., none of which may be missing."""
    steps, losses = zip(*figures["train_loss"], strict=True)
    np.testing.assert_array_equal(steps, np.arange(1, _STEPS + 1))
    return np.array(losses)


class ExampleTest(parameterized.TestCase):
    """Compares runs with a reference: one run with `jax.lax` on four devices."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="example_test_"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        lines = (f"{i} squared is {i * i}, cubed it is {i**3}.\n" for i in range(1000))
        (cls.folder / "corpus.txt").write_text("".join(lines))
        cls.reference = cls.train(
            "--collectives=lax",
            f"--checkpoint_dir={cls.folder / 'checkpoints'}",
            f"--checkpoint_every={_CHECKPOINT_STEP}",
            f"--plot={cls.folder / 'loss.png'}",
            launched=False,
        )

    @classmethod
    def train(cls, *flags, **options):
        """Returns the figures of a run that must succeed."""
        figures = cls.folder / "figures.json"
        figures.unlink(missing_ok=True)
        corpus = cls.folder / "corpus.txt"
        run = _start(f"--corpus={corpus}", f"--json={figures}", *flags, **options)
        assert run.returncode == 0, run.stdout + run.stderr
        return json.loads(figures.read_text())

    def checkpoints(self):
        """Returns a copy of the reference's first checkpoint, as if its run had stopped there."""
        copy = self.folder / self.id()
        shutil.copytree(self.folder / "checkpoints", copy)
        shutil.rmtree(copy / str(_STEPS))
        return copy

    def test_learns(self):
        losses = _losses(self.reference)
        self.assertAlmostEqual(losses[0], np.log(256), delta=0.3)
        self.assertLess(losses[-5:].mean(), 0.6 * losses[0])
        steps, held_out = zip(*self.reference["heldout_nats_per_byte"], strict=True)
        self.assertSequenceEqual(steps, [0, 10, 20, 30, 40, 50])
        self.assertLess(held_out[-1], 0.6 * held_out[0])

    def test_reports(self):
        self.assertEqual(set(self.reference), _FIGURES)
        self.assertEqual(self.reference["devices"], 4)
        self.assertEqual(self.reference["bytes_through_pool"], 0)
        self.assertIsNone(self.reference["communication_seconds"])
        self.assertIn("jax.lax", self.reference["pool_figures"])
        self.assertTrue((self.folder / "loss.png").read_bytes().startswith(b"\x89PNG"))

    def test_resumes_to_the_same_losses(self):
        resumed = self.train("--collectives=lax", f"--checkpoint_dir={self.checkpoints()}")
        self.assertEqual(resumed["resumed_after_step"], _CHECKPOINT_STEP)
        np.testing.assert_allclose(_losses(resumed), _losses(self.reference), rtol=1e-6)
        np.testing.assert_allclose(
            resumed["heldout_nats_per_byte"], self.reference["heldout_nats_per_byte"], rtol=1e-6
        )

    @pytest.mark.long
    def test_resumes_on_another_number_of_devices(self):
        resumed = self.train(
            "--collectives=lax", f"--checkpoint_dir={self.checkpoints()}", devices=3
        )
        self.assertEqual(resumed["resumed_after_step"], _CHECKPOINT_STEP)
        np.testing.assert_allclose(_losses(resumed), _losses(self.reference), rtol=1e-4)

    def test_does_not_resume_another_configuration(self):
        run = _start(
            "--collectives=lax",
            f"--corpus={self.folder / 'corpus.txt'}",
            f"--checkpoint_dir={self.checkpoints()}",
            "--seed=1",
        )
        self.assertNotEqual(run.returncode, 0)
        self.assertIn("was made with seed = 0, this run has 1", run.stdout + run.stderr)

    # The losses do not depend on how many processes and devices compute them, so one reference
    # serves for all.
    def test_losses_equal_those_of_lax(self):
        self.check_losses("cxl", 2, 1, "--prefetch", "--measure")

    @parameterized.named_parameters(
        ("lax_prefetching", "lax", 2, 1, "--prefetch", "--measure"),
        ("pool", "cxl", 2, 1),
        ("pool_two_devices_each", "cxl", 2, 2, "--prefetch", "--measure"),
    )
    @pytest.mark.long
    def test_losses_of_two_processes_equal_those_of_lax(self, *arguments):
        self.check_losses(*arguments)

    def check_losses(self, collectives, processes, devices, *flags):
        figures = self.train(
            f"--collectives={collectives}", *flags, processes=processes, devices=devices
        )
        self.assertEqual(figures["processes"], processes)
        self.assertEqual(figures["devices"], processes * devices)
        np.testing.assert_allclose(_losses(figures), _losses(self.reference), rtol=1e-4)
        np.testing.assert_allclose(
            figures["heldout_nats_per_byte"], self.reference["heldout_nats_per_byte"], rtol=1e-4
        )
        if collectives == "cxl":
            # A rank gathers all parameters twice in each step. In each gather it writes its own
            # part and reads the other ranks' parts, which makes 4 bytes for each parameter.
            gathered = 2 * _STEPS * 4 * figures["parameters"]
            self.assertGreaterEqual(figures["bytes_through_pool"], gathered)
            self.assertGreater(figures["communication_seconds"], 0)
        self.assertEqual(set(figures) - _FIGURES, _SPEED_FIGURES if "--measure" in flags else set())
        for name in _SPEED_FIGURES & set(figures):
            if name.endswith("share"):
                self.assertLessEqual(figures[name], 1)
            else:
                self.assertBetween(figures[name]["min"], 0, figures[name]["median"])

    @pytest.mark.long
    def test_losses_of_jit_alone_where_jax_cxl_is_not_installed(self):
        figures = self.train(
            "--tensor_parallel=2", script=_SCRIPT.with_name("train_jit.py"), hidden=True
        )
        self.assertEqual(set(figures), _FIGURES - _FIGURES_OF_COLLECTIVES)
        np.testing.assert_allclose(_losses(figures), _losses(self.reference), rtol=1e-4)
        np.testing.assert_allclose(
            figures["heldout_nats_per_byte"], self.reference["heldout_nats_per_byte"], rtol=1e-4
        )

    def test_losses_are_compared(self):
        same, other = (self.folder / name for name in ("same.json", "other.json"))
        figures = {"train_loss": self.reference["train_loss"]}
        same.write_text(json.dumps(figures))
        *most, [step, loss] = figures["train_loss"]
        other.write_text(json.dumps({"train_loss": [*most, [step, 1.5 * loss]]}))

        def compare(one, two, *flags):
            command = [sys.executable, _COMPARE, one, two, *flags]
            return subprocess.run(command, capture_output=True, text=True)

        equal = compare(same, same)
        self.assertEqual(equal.returncode, 0, equal.stderr)
        self.assertIn("50 steps, largest relative difference 0", equal.stdout)
        self.assertEqual(compare(same, other).returncode, 1)
        self.assertEqual(compare(same, other, "--tolerance=0.5").returncode, 0)

    @pytest.mark.long
    def test_gradients_equal_those_of_lax_in_a_model_of_useful_width(self):
        # The model is wide enough for XLA's faster matrix products. jaxlib 0.10.2 fuses them with
        # the code that assembles the gradient. When a collective of the pool consumed the result
        # of such a fusion, some norms were wrongly zero.
        wide = ("--layers=1", "--width=128", "--heads=4", "--sequence_length=256", "--steps=5")
        norms = [
            self.train(f"--collectives={collectives}", *wide, devices=2, optimized=True)[
                "gradient_norm"
            ]
            for collectives in ("lax", "cxl")
        ]
        np.testing.assert_allclose(norms[1], norms[0], rtol=2e-5)


if __name__ == "__main__":
    absltest.main()
