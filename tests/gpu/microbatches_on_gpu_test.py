"""Checks examples/experts/microbatches.py, traced as for GPUs: its values and its order of calls.

Nothing here needs a GPU: start_done_on_gpu_test.py explains why.
"""

import pathlib
import sys
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples"))

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import quick_compilation
from absl.testing import absltest
from common import transformer
from experts import exchanges
from experts.moe_trainer import MoeTrainer
from lowered_calls import calls

import jax_cxl

LAYERS = 3


def trainer(in_halves, dtype=np.float32):
    sizes = transformer.Sizes(layers=LAYERS, width=16, heads=2)
    options = (8, 2, 8.0, in_halves)  # room for all tokens
    return MoeTrainer(
        *(sizes, jnp.dtype(dtype), optax.adamw(0.01), jax_cxl, exchanges.dispatch, *options)
    )


def batch(rows):
    return np.random.default_rng(0).integers(0, 256, (rows, 17), np.uint8)


class MicrobatchesTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        self.enterContext(mock.patch("jax.default_backend", lambda: "gpu"))

    @pytest.mark.long
    def test_same_steps(self):
        """Steps with micro-batches give the same parameters as steps without."""
        states = []
        for in_halves in (False, True):
            each = trainer(in_halves)
            tokens = each.put(batch(2 * jax.device_count()))
            state = each.init(0)
            step = each.step.lower(state, tokens).compile(quick_compilation.OPTIONS)
            losses = []
            for _ in range(3):
                state, metrics = step(state, tokens)
                losses.append([float(value) for value in metrics.values()])
            states.append((losses, jax.tree.map(np.asarray, state.parameters)))
        expected, actual = states
        np.testing.assert_allclose(actual[0], expected[0], rtol=1e-4)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=2e-4), *states[::-1]
        )
        self.assertLess(actual[0][2][0], actual[0][0][0])

    def test_order_of_calls(self):
        """A computation is tied between the start and the done of all but four collectives."""
        each = trainer(True)
        tokens = each.put(batch(2 * jax.device_count()))
        state = each.init(0)
        text = each.step.trace(state, tokens).lower(lowering_platforms=("cuda",)).as_text()
        found = calls(text)
        starts = {result: name for name, result, _, _ in found if name in ("start", "start_rows")}
        # Each layer moves rows twice forward and twice backward for each of two micro-batches.
        self.assertEqual(list(starts.values()).count("start_rows"), 8 * LAYERS)
        # The parameters of all layers are gathered, and their gradients are scattered.
        self.assertEqual(list(starts.values()).count("start"), 2 * LAYERS)
        order = [
            (name, (result if name.startswith("start") else operands[name == "done"]).split("#")[0])
            for name, result, operands, _ in found
            if name != "collective"
        ]
        beside_nothing = 0
        for result in starts:
            begin = order.index((starts[result], result))
            end = order.index(("done", result))
            between = [name for name, _ in order[begin + 1 : end]]
            beside_nothing += "tie" not in between
        # Four collectives have nothing to overlap with: the first gather; the last combine; the
        # transpose of this combine, which comes first in the backward pass; and the last sum of
        # gradients.
        self.assertLessEqual(beside_nothing, 4)

    def test_odd_number_of_sequences(self):
        each = trainer(True)
        with self.assertRaisesRegex(ValueError, "even number of sequences on each device, got 1"):
            each.step(each.init(0), each.put(batch(jax.device_count())))


if __name__ == "__main__":
    absltest.main()
