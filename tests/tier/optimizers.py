"""A small model, optimizers for it, and a store for their state, for tests."""

import os
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl.testing import parameterized

import jax_cxl

MIB = 1 << 20
# In float32, a layer of `layers` and its two moments have 50,700 bytes, so each layer is a group.
GROUP_BYTES = 60_000

OPTIMIZERS = {
    "adamw": optax.adamw(1e-2),
    "sgd": optax.sgd(1e-1, momentum=0.9),
    "clip": optax.chain(
        optax.clip_by_global_norm(1e-2), optax.adamw(optax.cosine_decay_schedule(1e-2, 9))
    ),
    "noisy": optax.noisy_sgd(1e-3, key=3),
}


def layers(dtype=jnp.float32):
    rng = np.random.default_rng(0)

    def layer():
        return {
            "w": jnp.asarray(rng.normal(0, 0.1, (64, 65)), dtype),
            "b": jnp.zeros(65, dtype),
        }

    return {"layers": [layer() for _ in range(3)], "scale": jnp.ones((), dtype)}


def _loss(params, x):
    for layer in params["layers"]:
        x = jnp.tanh(x @ layer["w"].astype(jnp.float32) + layer["b"])[:, :64]
    return jnp.mean((x * params["scale"] - 0.5) ** 2)


gradients = jax.jit(jax.value_and_grad(_loss))


def batch(step):
    return jnp.asarray(np.random.default_rng(step).normal(size=(8, 64)), jnp.float32)


class Plain:
    """The plain optimizer, with masters, in a compiled function of its own."""

    def __init__(self, optimizer, params, master=None):
        self.params = params
        self._stored = jax.tree.map(lambda p: p.astype(master or p.dtype), params)
        self._state = optimizer.init(self._stored)

        @jax.jit
        def update(stored, grads, state):
            grads = jax.tree.map(lambda g, p: g.astype(p.dtype), grads, stored)
            updates, state = optimizer.update(grads, state, stored)
            stored = optax.apply_updates(stored, updates)
            return stored, state, jax.tree.map(lambda s, p: s.astype(p.dtype), stored, params)

        self._update = update

    def run(self, steps):
        losses = []
        for step in steps:
            loss, grads = gradients(self.params, batch(step))
            losses.append(float(loss))
            self._stored, self._state, self.params = self._update(self._stored, grads, self._state)
        return losses


def train(optimizer, params, state, steps):
    losses = []
    for _ in range(steps):
        loss, grads = gradients(params, batch(state.step))
        losses.append(float(loss))
        params, state = optimizer.step(params, grads, state)
    return losses, params, state


class OptimizerCase(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        parent = "/dev/shm" if os.path.isdir("/dev/shm") else None
        folder = tempfile.TemporaryDirectory(prefix="jax_cxl_test_tier.", dir=parent)
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def store(self, paths=1, size=96 * MIB):
        files = ",".join(f"{self.folder}/{number}" for number in range(paths))
        return jax_cxl.Store(f"file:{files}?size={size}")

    def pooled(self, optimizer, store, **options):
        options = {"group_bytes": GROUP_BYTES} | options
        return jax_cxl.pooled(optimizer, store, "state", **options)

    def assert_same(self, a, b):
        for (path, x), y in zip(
            jax.tree_util.tree_leaves_with_path(a), jax.tree.leaves(b), strict=True
        ):
            name = jax.tree_util.keystr(path)
            self.assertEqual(np.asarray(x).dtype, np.asarray(y).dtype, name)
            self.assertEqual(np.asarray(x).tobytes(), np.asarray(y).tobytes(), name)
