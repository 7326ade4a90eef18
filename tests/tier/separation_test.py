"""Which optimizers can be separated into parts that update few parameters, and into which parts."""

import jax
import jax.numpy as jnp
import optax
from absl.testing import absltest, parameterized

from jax_cxl._tier import dataflow, separation

_PARAMS = {
    "a": jnp.zeros((64, 64)),
    "b": {"c": jnp.zeros(5000), "d": jnp.zeros(())},
    "e": jnp.zeros((64, 64)),
}


def _separated(optimizer, resident=True, params=_PARAMS):
    params = jax.eval_shape(lambda: params)
    state = jax.eval_shape(optimizer.init, params)

    def update(params, grads, state):
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    flow, _ = dataflow.trace(update, params, params, state)
    return separation.separate(flow, len(jax.tree.leaves(params)), resident)


class SeparationTest(parameterized.TestCase):
    @parameterized.named_parameters(
        ("adamw", optax.adamw(1e-3), 2, 1),
        ("sgd", optax.sgd(1e-3), 0, 0),
        ("lamb", optax.lamb(1e-3), 2, 1),
        ("norm", optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(1e-3, momentum=0.9)), 1, 0),
        ("schedule", optax.lion(optax.cosine_decay_schedule(1e-3, 10)), 1, 2),
        ("injected", optax.inject_hyperparams(optax.adam)(learning_rate=1e-3), 2, 7),
    )
    def test_each_parameter_by_itself(self, optimizer, of_parameter, shared):
        found = _separated(optimizer)
        large = [part for part in found.parts if part.params[0] != 2]
        self.assertEqual([part.params for part in large], [(0,), (1,), (3,)])
        for part in large:
            self.assertLen(part.state, of_parameter)
        # Inputs need not be computed.
        self.assertTrue(set(found.scalars).isdisjoint(found.update.inputs), found.scalars)
        # The state of "d" is small, and may be shared.
        self.assertBetween(len(found.shared), shared, shared + of_parameter)

    def test_many_parameters(self):
        optimizer = optax.chain(optax.trace(0.9), optax.scale_by_schedule(lambda n: 1 / (n + 1)))
        found = _separated(optimizer, params=[jnp.zeros(2000)] * 50)
        self.assertEqual([part.params for part in found.parts], [(n,) for n in range(50)])

    def test_equal_layers_have_equal_programs(self):
        found = _separated(optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3)))
        keys = [
            separation.slice_part(found, part.params, part.state).key()
            for part in found.parts
            if part.params in ((0,), (3,))
        ]
        self.assertEqual(*keys)
        other = _separated(optax.adamw(1e-3))
        part = other.parts[0]
        key = separation.slice_part(other, part.params, part.state).key()
        self.assertNotEqual(keys[0], key)

    def test_what_depends_on_all_stays_together(self):
        self.assertLen(_separated(optax.MultiSteps(optax.sgd(1e-3), 2)).parts, 1)
        # If masters are in the store (`resident=False`), their norm cannot be computed before the
        # parts run.
        norm = optax.GradientTransformation(
            lambda params: optax.EmptyState(),
            lambda grads, state, params: (
                jax.tree.map(lambda g: g * optax.global_norm(params), grads),
                state,
            ),
        )
        self.assertLen(_separated(norm).parts, 4)
        self.assertLen(_separated(norm, resident=False).parts, 1)
        # Gradients are on the devices in any case.
        clip = optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(1e-3))
        self.assertLen(_separated(clip, resident=False).parts, 4)

    def test_effects_are_refused(self):
        def update(grads, state, params):
            del params
            jax.debug.print("update")
            return grads, state

        printing = optax.GradientTransformation(lambda params: optax.EmptyState(), update)
        with self.assertRaisesRegex(TypeError, "effects"):
            _separated(printing)


if __name__ == "__main__":
    absltest.main()
