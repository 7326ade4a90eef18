"""Optimizers whose state lives in a store: the same bits as plain ones, and what a death leaves."""

import os
import tempfile
import time

import host_as_gpu
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from absl.testing import absltest, parameterized

import jax_cxl
from jax_cxl._store.memory import layout
from jax_cxl._store.writing import saving
from jax_cxl._tier import copying

_MIB = 1 << 20
# In float32, a layer of `_params` and its two moments have 50,700 bytes, so each layer is a group.
_GROUP_BYTES = 60_000

_OPTIMIZERS = {
    "adamw": optax.adamw(1e-2),
    "sgd": optax.sgd(1e-1, momentum=0.9),
    "clip": optax.chain(
        optax.clip_by_global_norm(1e-2), optax.adamw(optax.cosine_decay_schedule(1e-2, 9))
    ),
    "noisy": optax.noisy_sgd(1e-3, key=3),
}


def _params(dtype=jnp.float32):
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


_gradients = jax.jit(jax.value_and_grad(_loss))


def _batch(step):
    return jnp.asarray(np.random.default_rng(step).normal(size=(8, 64)), jnp.float32)


class _Plain:
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
            loss, grads = _gradients(self.params, _batch(step))
            losses.append(float(loss))
            self._stored, self._state, self.params = self._update(self._stored, grads, self._state)
        return losses


def _train(optimizer, params, state, steps):
    losses = []
    for _ in range(steps):
        loss, grads = _gradients(params, _batch(state.step))
        losses.append(float(loss))
        params, state = optimizer.step(params, grads, state)
    return losses, params, state


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


class _Test(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        parent = "/dev/shm" if os.path.isdir("/dev/shm") else None
        folder = tempfile.TemporaryDirectory(prefix="jax_cxl_test_tier.", dir=parent)
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def store(self, paths=1, size=96 * _MIB):
        files = ",".join(f"{self.folder}/{number}" for number in range(paths))
        return jax_cxl.Store(f"file:{files}?size={size}")

    def pooled(self, optimizer, store, **options):
        options = {"group_bytes": _GROUP_BYTES} | options
        return jax_cxl.pooled(optimizer, store, "state", **options)

    def assert_same(self, a, b):
        for (path, x), y in zip(
            jax.tree_util.tree_leaves_with_path(a), jax.tree.leaves(b), strict=True
        ):
            name = jax.tree_util.keystr(path)
            self.assertEqual(np.asarray(x).dtype, np.asarray(y).dtype, name)
            self.assertEqual(np.asarray(x).tobytes(), np.asarray(y).tobytes(), name)


class PooledTest(_Test):
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
        optimizer = self.pooled(_OPTIMIZERS[name], store, master=master)
        params = _params(dtype)
        losses, params, state = _train(optimizer, params, optimizer.init(params), 3)
        # Another job continues from the store.
        optimizer.wait()
        store.close()
        del optimizer, store
        optimizer = self.pooled(_OPTIMIZERS[name], self.store(), master=master)
        like = jax.tree.map(lambda p: jax.ShapeDtypeStruct(p.shape, p.dtype), params)
        restored, state = optimizer.restore_latest(like)
        self.assertEqual(state.step, 3)
        self.assert_same(restored, params)
        more, params, _ = _train(optimizer, restored, state, 2)
        plain = _Plain(_OPTIMIZERS[name], _params(dtype), master)
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
        optimizer = self.pooled(_OPTIMIZERS["adamw"], store, **options)
        params = jax.device_put(_params(jnp.bfloat16), replicated)
        losses, params, _ = _train(optimizer, params, optimizer.init(params), 2)
        optimizer.wait()
        self.assertEqual(params["layers"][0]["w"].sharding, replicated)
        moments = store.read("state").tree["state/0/mu/layers/1/w"]
        self.assertEqual(moments.shape, (64, 65))
        # A job with one device continues.
        one = self.pooled(_OPTIMIZERS["adamw"], store, master=jnp.float32)
        restored, state = one.restore_latest(_params(jnp.bfloat16))
        more, params, _ = _train(one, restored, state, 2)
        plain = _Plain(_OPTIMIZERS["adamw"], _params(jnp.bfloat16), jnp.float32)
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
        plain, plain_state = params, _OPTIMIZERS["clip"].init(params)
        optimizer = self.pooled(_OPTIMIZERS["clip"], self.store(), donate=False)
        state = optimizer.init(params)

        @jax.jit
        def update(params, grads, state):
            updates, state = _OPTIMIZERS["clip"].update(grads, state, params)
            return optax.apply_updates(params, updates), state

        for _ in range(2):
            plain, plain_state = update(plain, gradients(plain), plain_state)
            params, state = optimizer.step(params, gradients(params), state)
        self.assert_same(params, plain)
        self.assertEqual(params["rows"].sharding, rows)

    def test_memory_is_used_again(self):
        for donate in (True, False):
            optimizer = jax_cxl.pooled(
                _OPTIMIZERS["adamw"], self.store(), f"state {donate}", donate=donate
            )
            params = _params()
            state = optimizer.init(params)
            grads = _gradients(params, _batch(0))[1]
            optimizer.step(params, grads, state)
            deleted = {x.is_deleted() for x in jax.tree.leaves((params, grads))}
            self.assertEqual(deleted, {donate})
            # Programs reuse the memory of moments and parameters, but not that of the count.
            plan = optimizer._plan[1]
            programs = plan._made_programs.values()
            reused = {program.inputs[n] for program in programs for n in program.donated}
            count = len(plan.params)
            moments = set(range(2 * count + 1, 4 * count + 1))
            self.assertEqual(reused, moments | set(range(count if donate else 0)))

    def test_groups_are_as_large_as_they_may_be(self):
        params = [jnp.ones(5000)] * 5
        moments = 2 * 5000 * 4  # the bytes of a parameter and its moment
        for size, expected in ((1, 5), (2 * moments - 1, 5), (2 * moments, 3), (5 * moments, 1)):
            optimizer = self.pooled(_OPTIMIZERS["sgd"], self.store(), group_bytes=size)
            self.assertLen(optimizer._plan_of(params).groups, expected, size)

    def test_memory_of_the_first_moment_is_used_again(self):
        optimizer = self.pooled(_OPTIMIZERS["sgd"], self.store())
        params = {"a": jnp.ones(5000)}
        grads = {"a": jnp.ones(5000)}
        optimizer.step(params, grads, optimizer.init(params))
        (program,) = optimizer._plan[1]._made_programs.values()
        self.assertEqual({program.inputs[n] for n in program.donated}, {0, 2})

    def test_gradients_of_numpy(self):
        found = []
        for name, kind in (("jax", jnp.copy), ("numpy", np.array)):
            optimizer = jax_cxl.pooled(_OPTIMIZERS["sgd"], self.store(), name)
            params = {"a": jnp.arange(5.0), "b": jnp.ones((3, 2))}
            state = optimizer.init(params)
            found.append(optimizer.step(params, jax.tree.map(kind, params), state)[0])
        self.assert_same(*found)

    def test_restore_latest_of_nothing_creates_nothing(self):
        optimizer = self.pooled(_OPTIMIZERS["adamw"], self.store())
        self.assertIsNone(optimizer.restore_latest(_params()))
        self.assertEmpty(os.listdir(self.folder))

    def test_a_death_at_any_write_leaves_the_last_whole_step(self):
        store = self.store()
        optimizer = self.pooled(_OPTIMIZERS["adamw"], store)
        params = _params()
        state = optimizer.init(params)
        trees = {}
        core = store._names.devices().core
        deaths = 0
        for writes in range(1000):
            _, params, state = _train(optimizer, params, state, 1)
            optimizer.wait()
            trees[state.step] = jax.tree.map(np.asarray, params)
            store._names.devices().core = _DyingMemory(core, writes)
            try:
                _, params, state = _train(optimizer, params, state, 1)
                optimizer.wait()
                trees[state.step] = jax.tree.map(np.asarray, params)
                died = False
            except SystemError:
                died = True
            dying, store._names.devices().core = store._names.devices().core, core
            last = max(trees)
            params, state = optimizer.restore_latest(_params())
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
        optimizer = self.pooled(_OPTIMIZERS["adamw"], store, group_bytes=5 * _MIB)
        state = optimizer.init(params)
        plain = list(params)
        plain_state = _OPTIMIZERS["adamw"].init(plain)
        update = jax.jit(_OPTIMIZERS["adamw"].update)
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


class RefusedTest(_Test):
    def test_too_little_space(self):
        params = {"w": jnp.zeros((1 << 20, 4))}
        optimizer = self.pooled(_OPTIMIZERS["adamw"], self.store(size=64 * _MIB))
        with self.assertRaisesRegex(jax_cxl.PoolError, "'state' needs [0-9]+ bytes") as caught:
            optimizer.init(params)
        needed = int(str(caught.exception).split("needs ")[1].split()[0])
        os.unlink(f"{self.folder}/0")
        least = layout.SECTIONS_OFFSET + needed
        less = least // layout.PAGE_BYTES * layout.PAGE_BYTES
        with self.assertRaisesRegex(jax_cxl.PoolError, "needs"):
            self.pooled(_OPTIMIZERS["adamw"], self.store(size=less - 4096)).init(params)
        os.unlink(f"{self.folder}/0")
        enough = self.pooled(_OPTIMIZERS["adamw"], self.store(size=less + layout.PAGE_BYTES))
        state = enough.init(params)
        for _ in range(3):
            params, state = enough.step(params, {"w": jnp.ones((1 << 20, 4))}, state)
        enough.wait()

    def test_updates_that_depend_on_each_other(self):
        optimizer = self.pooled(optax.MultiSteps(_OPTIMIZERS["adamw"], 2), self.store())
        with self.assertRaisesRegex(ValueError, "depend on each other.*MultiSteps.*group_bytes"):
            optimizer.init(_params())
        # The norm of all parameters can be computed first if they are on the devices, but not if
        # they are in the store.
        by_norm = optax.stateless(
            lambda grads, params: jax.tree.map(lambda g: g * optax.global_norm(params), grads)
        )
        jax_cxl.pooled(by_norm, self.store(), "norm", group_bytes=1).init(_params())
        with self.assertRaisesRegex(ValueError, "depend on each other"):
            self.pooled(by_norm, self.store(), master=jnp.float32, group_bytes=1).init(_params())
        # With a single group for all parameters, the results are right.
        large = self.pooled(optax.MultiSteps(_OPTIMIZERS["sgd"], 2), self.store(), group_bytes=_MIB)
        params = _params()
        losses, params, _ = _train(large, params, large.init(params), 4)
        plain = _params()
        update = optax.MultiSteps(_OPTIMIZERS["sgd"], 2)
        state = update.init(plain)
        expected = []
        for step in range(4):
            loss, grads = _gradients(plain, _batch(step))
            expected.append(float(loss))
            updates, state = jax.jit(update.update)(grads, state, plain)
            plain = optax.apply_updates(plain, updates)
        self.assertEqual(losses, expected)

    def test_a_state_that_is_being_written(self):
        store, params, run = self.store(), _params(), saving.Save.run

        def late(save):
            time.sleep(0.5)
            run(save)

        self.enter_context(absltest.mock.patch.object(saving.Save, "run", late))
        optimizer = self.pooled(_OPTIMIZERS["adamw"], store)
        optimizer.init(params)
        for again in (optimizer, self.pooled(_OPTIMIZERS["adamw"], store)):
            with self.assertRaisesRegex(jax_cxl.StoreError, "already has a state"):
                again.init(params)

    def test_a_name_that_is_used_again(self):
        store = self.store()
        optimizer = self.pooled(_OPTIMIZERS["adamw"], store)
        params = _params()
        state = optimizer.init(params)
        params, state = optimizer.step(params, _gradients(params, _batch(0))[1], state)
        optimizer.wait()
        store.delete("state")
        new = _params()
        grads = _gradients(new, _batch(1))[1]
        again, _ = optimizer.step(new, grads, optimizer.init(new))
        other = jax_cxl.pooled(_OPTIMIZERS["adamw"], store, "other", group_bytes=_GROUP_BYTES)
        new = _params()
        grads = _gradients(new, _batch(1))[1]
        expected, _ = other.step(new, grads, other.init(new))
        jax.tree.map(np.testing.assert_array_equal, again, expected)

    def test_wrong_calls(self):
        store = self.store()
        optimizer = self.pooled(_OPTIMIZERS["adamw"], store)
        params = _params()
        with self.assertRaisesRegex(TypeError, r"outside of jax\.jit"):
            jax.jit(lambda p: optimizer.init(p))(params)
        with self.assertRaisesRegex(TypeError, r"\['params'\]\['a'\] is of type float"):
            optimizer.init({"a": 1.0})
        first = optimizer.init(params)
        with self.assertRaisesRegex(jax_cxl.StoreError, "already has a state"):
            self.pooled(_OPTIMIZERS["adamw"], store).init(params)
        grads = _gradients(params, _batch(0))[1]
        with self.assertRaisesRegex(ValueError, "tree structure"):
            optimizer.step(params, grads["layers"], first)
        params, _ = optimizer.step(params, grads, first)
        grads = _gradients(params, _batch(0))[1]
        with self.assertRaisesRegex(ValueError, "not the last state .*step 0; .* step 1"):
            optimizer.step(params, grads, first)
        tied = {"a": jnp.ones(3), "b": jnp.ones(3)}
        of_tied = jax_cxl.pooled(_OPTIMIZERS["sgd"], store, "tied")
        state = of_tied.init(tied)
        tied["b"] = tied["a"]
        with self.assertRaisesRegex(
            ValueError, r"'a'\] and \['params'\]\['b'\] are the same array"
        ):
            of_tied.step(tied, {"a": jnp.ones(3), "b": jnp.ones(3)}, state)
        optimizer.wait()
        other = self.pooled(_OPTIMIZERS["sgd"], store)
        with self.assertRaisesRegex(
            jax_cxl.StoreError,
            r"no state of this optimizer .*: \['state'\]\[0\].count is stored, but not needed",
        ):
            other.restore_latest(params)
        with self.assertRaisesRegex(TypeError, "must be a jax_cxl.Store"):
            jax_cxl.pooled(_OPTIMIZERS["sgd"], "shm:x", "state")
        for options, text in (
            ({"master": jnp.int32}, "must be a floating-point dtype"),
            ({"group_bytes": 0}, "group_bytes=0 must be at least 1"),
        ):
            with self.assertRaisesRegex(ValueError, text):
                self.pooled(_OPTIMIZERS["sgd"], store, **options)
        self.pooled(_OPTIMIZERS["sgd"], store, master=jnp.float32, group_bytes=1)
        with self.assertRaisesRegex(TypeError, "must have the function init"):
            jax_cxl.pooled(lambda: 0, store, "state")

    def test_an_error_in_a_step(self):
        store = self.store()
        optimizer = self.pooled(_OPTIMIZERS["adamw"], store)
        params = _params()
        _, params, state = _train(optimizer, params, optimizer.init(params), 2)
        grads = _gradients(params, _batch(2))[1]
        grads["layers"][2]["w"].delete()
        with self.assertRaisesRegex((RuntimeError, ValueError), "deleted"):
            optimizer.step(params, grads, state)
        params, state = optimizer.restore_latest(_params())
        self.assertEqual(state.step, 2)
        losses, params, state = _train(optimizer, params, state, 1)
        self.assertEqual(losses, _Plain(_OPTIMIZERS["adamw"], _params()).run(range(3))[2:])
        store.close()
        with self.assertRaisesRegex(ValueError, "the store was closed"):
            optimizer.step(params, params, state)

    def test_no_state_yet(self):
        self.assertIsNone(self.pooled(_OPTIMIZERS["adamw"], self.store()).restore_latest(_params()))

    def test_a_state_that_changes_its_form(self):
        for after, message in (
            (lambda state: state.astype(jnp.int8), r"changes \['state'\] from .*int32.*int8"),
            (lambda state: (state, state), "states of different structures"),
        ):
            optimizer = optax.GradientTransformation(
                lambda params: jnp.int32(0),
                lambda grads, state, params, after=after: (grads, after(state)),
            )
            with self.assertRaisesRegex(TypeError, message):
                self.pooled(optimizer, self.store()).init(_params())

    def test_damage_of_moments_is_found(self):
        store = self.store()
        optimizer = self.pooled(_OPTIMIZERS["adamw"], store, donate=False)
        params = {"w": jnp.ones(3 * layout.BLOCK_BYTES // 4)}
        state = optimizer.init(params)
        for _ in range(2):
            state = optimizer.step(params, params, state)[1]
        optimizer.wait()
        # The first three blocks have the parameters.
        offset = optimizer._publisher.section.geometry.row(state.number, 4) + 100
        store._names.devices().core.write(0, offset, np.full(1, 77, np.uint8))
        with self.assertLogs("jax_cxl", "WARNING") as logs:
            _, state = optimizer.restore_latest(params)
        self.assertEqual(state.step, 1)
        self.assertIn("is not used: block 4", logs.output[0])

    def test_damage_is_found(self):
        store = self.store()
        optimizer = self.pooled(_OPTIMIZERS["adamw"], store)
        params = _params()
        _, params, state = _train(optimizer, params, optimizer.init(params), 2)
        optimizer.wait()
        section = optimizer._publisher.section
        offset = section.geometry.row(state.number, 0) + 100
        store._names.devices().core.write(0, offset, np.full(1, 77, np.uint8))
        with self.assertLogs("jax_cxl", "WARNING") as logs:
            _, state = optimizer.restore_latest(params)
        self.assertEqual(state.step, 1)
        self.assertIn("is not used: block 0", logs.output[0])


if __name__ == "__main__":
    absltest.main()
