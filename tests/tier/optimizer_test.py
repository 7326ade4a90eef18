"""Optimizers whose state lives in a store: the same bits as plain ones, and what a death leaves."""

import os

import host_as_gpu
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from absl.testing import absltest, parameterized
from optimizers import (
    MIB,
    OPTIMIZERS,
    OptimizerCase,
    Plain,
    batch,
    gradients,
    layers,
    train,
)

import jax_cxl
from jax_cxl._tier import copying


class _DyingMemory:
    """Memory to which a process stops writing, as if it had died there."""

    def __init__(self, core, writes):
        self._core = core
        self.left = writes

    def __getattr__(self, name):
        return getattr(self._core, name)

    def write(self, device, offset, data):
        self.left -= 1
        if self.left < 0:
            self._core.write(device, offset, np.frombuffer(data, np.uint8)[: len(data) // 2])
            raise SystemError("dead")
        self._core.write(device, offset, data)

    def store_word(self, *arguments):
        self.left -= 1
        if self.left < 0:
            raise SystemError("dead")
        self._core.store_word(*arguments)


class PooledTest(OptimizerCase):
    @parameterized.parameters(
        ("adamw", jnp.float32, None),
        ("adamw", jnp.bfloat16, jnp.float32),
        ("sgd", jnp.bfloat16, None),
        ("clip", jnp.float32, None),
        ("noisy", jnp.float32, None),
    )
    @pytest.mark.sample(3)
    def test_same_bits_as_the_plain_optimizer(self, name, dtype, master):
        store = self.store()
        optimizer = self.pooled(OPTIMIZERS[name], store, master=master)
        params = layers(dtype)
        losses, params, state = train(optimizer, params, optimizer.init(params), 3)
        # Another job continues from the store.
        optimizer.wait()
        store.close()
        del optimizer, store
        optimizer = self.pooled(OPTIMIZERS[name], self.store(), master=master)
        like = jax.tree.map(lambda p: jax.ShapeDtypeStruct(p.shape, p.dtype), params)
        restored, state = optimizer.restore_latest(like)
        self.assertEqual(state.step, 3)
        self.assert_same(restored, params)
        more, params, _ = train(optimizer, restored, state, 2)
        plain = Plain(OPTIMIZERS[name], layers(dtype), master)
        self.assertEqual(losses + more, plain.run(range(5)))
        self.assert_same(params, plain.params)

    def test_arrays_over_devices(self):
        mesh = jax_cxl.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
        replicated = jax.NamedSharding(mesh, jax.P())

        def rows(leaf):
            divisible = leaf.shape and leaf.shape[0] % 4 == 0
            return jax.NamedSharding(mesh, jax.P("x")) if divisible else None

        store = self.store()
        options = {"sharding": rows, "master": jnp.float32, "group_bytes": 1}
        optimizer = self.pooled(OPTIMIZERS["adamw"], store, **options)
        params = jax.device_put(layers(jnp.bfloat16), replicated)
        losses, params, _ = train(optimizer, params, optimizer.init(params), 2)
        optimizer.wait()
        self.assertEqual(params["layers"][0]["w"].sharding, replicated)
        moments = store.read("state").tree["state/0/mu/layers/1/w"]
        self.assertEqual(moments.shape, (64, 65))
        # A job with one device continues.
        one = self.pooled(OPTIMIZERS["adamw"], store, master=jnp.float32)
        restored, state = one.restore_latest(layers(jnp.bfloat16))
        more, params, _ = train(one, restored, state, 2)
        plain = Plain(OPTIMIZERS["adamw"], layers(jnp.bfloat16), jnp.float32)
        self.assertEqual(losses + more, plain.run(range(4)))
        self.assert_same(params, plain.params)

    def test_explicit_axes_and_empty_arrays(self):
        mesh = jax.make_mesh((4,), ("x",), (jax.sharding.AxisType.Explicit,))
        rows, everywhere = (jax.NamedSharding(mesh, spec) for spec in (jax.P("x"), jax.P()))
        params = {
            "rows": jax.device_put(jnp.linspace(0, 1, 4096), rows),
            "whole": jax.device_put(jnp.linspace(0, 2, 5000), everywhere),
            "empty": jax.device_put(jnp.zeros((0, 3)), everywhere),
            "none": None,
        }
        gradients = jax.jit(lambda params: jax.tree.map(jnp.cos, params))
        plain, plain_state = params, OPTIMIZERS["clip"].init(params)
        optimizer = self.pooled(OPTIMIZERS["clip"], self.store(), donate=False)
        state = optimizer.init(params)

        @jax.jit
        def update(params, grads, state):
            updates, state = OPTIMIZERS["clip"].update(grads, state, params)
            return optax.apply_updates(params, updates), state

        for _ in range(2):
            plain, plain_state = update(plain, gradients(plain), plain_state)
            params, state = optimizer.step(params, gradients(params), state)
        self.assert_same(params, plain)
        self.assertEqual(params["rows"].sharding, rows)

    def test_memory_is_used_again(self):
        for donate in (True, False):
            optimizer = jax_cxl.pooled(
                OPTIMIZERS["adamw"], self.store(), f"state {donate}", donate=donate
            )
            params = layers()
            state = optimizer.init(params)
            grads = gradients(params, batch(0))[1]
            optimizer.step(params, grads, state)
            deleted = {x.is_deleted() for x in jax.tree.leaves((params, grads))}
            self.assertEqual(deleted, {donate})
            # Programs reuse the memory of moments and parameters, but not that of the count.
            plan = optimizer._plan[1]
            count = len(plan.params)
            inputs = plan._separation.update.inputs
            reused = {n for n, variable in enumerate(inputs) if variable in plan._donated}
            moments = set(range(2 * count + 1, 4 * count + 1))
            self.assertEqual(reused, moments | set(range(count if donate else 0)))

    def test_groups_are_as_large_as_they_may_be(self):
        params = [jnp.ones(5000)] * 5
        moments = 2 * 5000 * 4  # the bytes of a parameter and its moment
        for size, expected in ((1, 5), (2 * moments - 1, 5), (2 * moments, 3), (5 * moments, 1)):
            optimizer = self.pooled(OPTIMIZERS["sgd"], self.store(), group_bytes=size)
            self.assertLen(optimizer._plan_of(params).groups, expected, size)

    def test_memory_of_the_first_moment_is_used_again(self):
        optimizer = self.pooled(OPTIMIZERS["sgd"], self.store())
        params = {"a": jnp.ones(5000)}
        grads = {"a": jnp.ones(5000)}
        optimizer.step(params, grads, optimizer.init(params))
        donated = {donated for _, donated in optimizer._plan[1]._compilations}
        self.assertEqual(donated, {(), (0, 2)})

    def test_gradients_of_numpy(self):
        found = []
        for name, kind in (("jax", jnp.copy), ("numpy", np.array)):
            optimizer = jax_cxl.pooled(OPTIMIZERS["sgd"], self.store(), name)
            params = {"a": jnp.arange(5.0), "b": jnp.ones((3, 2))}
            state = optimizer.init(params)
            found.append(optimizer.step(params, jax.tree.map(kind, params), state)[0])
        self.assert_same(*found)

    def test_restore_latest_of_nothing_creates_nothing(self):
        optimizer = self.pooled(OPTIMIZERS["adamw"], self.store())
        self.assertIsNone(optimizer.restore_latest(layers()))
        self.assertEmpty(os.listdir(self.folder))

    def test_a_death_at_any_write_leaves_the_last_whole_step(self):
        store = self.store()
        optimizer = self.pooled(OPTIMIZERS["adamw"], store)
        params = layers()
        state = optimizer.init(params)
        trees = {}
        core = store._names.devices().core
        deaths = 0
        for writes in range(1000):
            _, params, state = train(optimizer, params, state, 1)
            optimizer.wait()
            trees[state.step] = jax.tree.map(np.asarray, params)
            store._names.devices().core = _DyingMemory(core, writes)
            try:
                _, params, state = train(optimizer, params, state, 1)
                optimizer.wait()
                trees[state.step] = jax.tree.map(np.asarray, params)
                died = False
            except SystemError:
                died = True
            dying, store._names.devices().core = store._names.devices().core, core
            last = max(trees)
            params, state = optimizer.restore_latest(layers())
            self.assertEqual(state.step, last)
            self.assert_same(params, trees[last])
            if not died:
                self.assertGreaterEqual(dying.left, 0)
                break
            deaths += 1
        self.assertGreater(deaths, 6)

    @parameterized.parameters(1, 3)
    @pytest.mark.sample(2)
    def test_arrays_of_gpus(self, paths):
        # The host stands in for the GPUs: it reads pieces of the pool, and its copies end late.
        copies = host_as_gpu.Copies()
        store = self.store(paths)
        store._names.made()._copies = copies
        started = self.enter_context(
            absltest.mock.patch.object(copying, "start", wraps=copying.start)
        )
        self.enter_context(host_as_gpu.reads_on_gpus())
        self.enter_context(host_as_gpu.arrays_on_gpus())
        rng = np.random.default_rng(0)
        params = [jnp.asarray(rng.normal(size=n), jnp.float32) for n in (700_000, 5, 600_001)]
        optimizer = self.pooled(OPTIMIZERS["adamw"], store, group_bytes=5 * MIB)
        state = optimizer.init(params)
        plain = list(params)
        plain_state = OPTIMIZERS["adamw"].init(plain)
        update = jax.jit(OPTIMIZERS["adamw"].update)
        for _ in range(3):
            grads = [jnp.sin(p) for p in plain]
            updates, plain_state = update(grads, plain_state, plain)
            plain = jax.jit(optax.apply_updates)(plain, updates)
            params, state = optimizer.step(params, [jnp.sin(p) for p in params], state)
        for a, b in zip(params, plain, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5)
        optimizer.wait()
        # With one path, GPUs copy two moments of each of the two large arrays in each of three
        # steps: 12 moments. With several paths, the host reads the pool.
        count = sum(len(call.args[0]) for call in started.call_args_list)
        self.assertEqual(count, 12 if paths == 1 else 0)
        self.assertGreater(copies.checked, 0)
        restored, _ = optimizer.restore_latest(params)
        self.assert_same(restored, params)
        if paths > 1:
            return
        # GPUs compute checksums of what arrives. Here these are wrong, as if the data were damaged.
        kept, right = [jnp.copy(p) for p in params], copies.checksums

        def wrong(blocks, size):
            return [[size] * len(of_gpu) for _, of_gpu in blocks]

        state = optimizer.restore_latest(params)[1]
        copies.checksums = wrong
        with self.assertRaisesRegex(jax_cxl.StoreError, "block .* is damaged"):
            optimizer.step(params, [jnp.sin(p) for p in params], state)
        copies.checksums = right
        params, state = optimizer.restore_latest(kept)
        self.assertEqual(state.step, 3)
        self.assert_same(params, kept)
        copies.checksums = wrong
        with self.assertRaisesRegex(jax_cxl.StoreError, "block .* is damaged"):
            optimizer.restore_latest(params)


if __name__ == "__main__":
    absltest.main()
