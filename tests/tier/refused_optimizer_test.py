"""Optimizers whose state lives in a store: wrong calls, and states that are damaged or in use."""

import os
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl.testing import absltest
from optimizers import (
    GROUP_BYTES,
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
from jax_cxl._store.memory import layout
from jax_cxl._store.writing import saving


class RefusedTest(OptimizerCase):
    def test_too_little_space(self):
        params = {"w": jnp.zeros((1 << 20, 4))}
        optimizer = self.pooled(OPTIMIZERS["adamw"], self.store(size=64 * MIB))
        with self.assertRaisesRegex(jax_cxl.PoolError, "'state' needs [0-9]+ bytes") as caught:
            optimizer.init(params)
        needed = int(str(caught.exception).split("needs ")[1].split()[0])
        os.unlink(f"{self.folder}/0")
        least = layout.SECTIONS_OFFSET + needed
        less = least // layout.PAGE_BYTES * layout.PAGE_BYTES
        with self.assertRaisesRegex(jax_cxl.PoolError, "needs"):
            self.pooled(OPTIMIZERS["adamw"], self.store(size=less - 4096)).init(params)
        os.unlink(f"{self.folder}/0")
        enough = self.pooled(OPTIMIZERS["adamw"], self.store(size=less + layout.PAGE_BYTES))
        state = enough.init(params)
        for _ in range(3):
            params, state = enough.step(params, {"w": jnp.ones((1 << 20, 4))}, state)
        enough.wait()

    def test_updates_that_depend_on_each_other(self):
        optimizer = self.pooled(optax.MultiSteps(OPTIMIZERS["adamw"], 2), self.store())
        with self.assertRaisesRegex(ValueError, "depend on each other.*MultiSteps.*group_bytes"):
            optimizer.init(layers())
        # The norm of all parameters can be computed first if they are on the devices, but not if
        # they are in the store.
        by_norm = optax.stateless(
            lambda grads, params: jax.tree.map(lambda g: g * optax.global_norm(params), grads)
        )
        jax_cxl.pooled(by_norm, self.store(), "norm", group_bytes=1).init(layers())
        with self.assertRaisesRegex(ValueError, "depend on each other"):
            self.pooled(by_norm, self.store(), master=jnp.float32, group_bytes=1).init(layers())
        # With a single group for all parameters, the results are right.
        large = self.pooled(optax.MultiSteps(OPTIMIZERS["sgd"], 2), self.store(), group_bytes=MIB)
        params = layers()
        losses, params, _ = train(large, params, large.init(params), 4)
        plain = layers()
        update = optax.MultiSteps(OPTIMIZERS["sgd"], 2)
        state = update.init(plain)
        expected = []
        for step in range(4):
            loss, grads = gradients(plain, batch(step))
            expected.append(float(loss))
            updates, state = jax.jit(update.update)(grads, state, plain)
            plain = optax.apply_updates(plain, updates)
        self.assertEqual(losses, expected)

    def test_a_state_that_is_being_written(self):
        store, params, run = self.store(), layers(), saving.Save.run

        def late(save):
            time.sleep(0.5)
            run(save)

        self.enter_context(absltest.mock.patch.object(saving.Save, "run", late))
        optimizer = self.pooled(OPTIMIZERS["adamw"], store)
        optimizer.init(params)
        for again in (optimizer, self.pooled(OPTIMIZERS["adamw"], store)):
            with self.assertRaisesRegex(jax_cxl.StoreError, "already has a state"):
                again.init(params)

    def test_a_name_that_is_used_again(self):
        store = self.store()
        optimizer = self.pooled(OPTIMIZERS["adamw"], store)
        params = layers()
        state = optimizer.init(params)
        params, state = optimizer.step(params, gradients(params, batch(0))[1], state)
        optimizer.wait()
        store.delete("state")
        new = layers()
        grads = gradients(new, batch(1))[1]
        again, _ = optimizer.step(new, grads, optimizer.init(new))
        other = jax_cxl.pooled(OPTIMIZERS["adamw"], store, "other", group_bytes=GROUP_BYTES)
        new = layers()
        grads = gradients(new, batch(1))[1]
        expected, _ = other.step(new, grads, other.init(new))
        jax.tree.map(np.testing.assert_array_equal, again, expected)

    def test_wrong_calls(self):
        store = self.store()
        optimizer = self.pooled(OPTIMIZERS["adamw"], store)
        params = layers()
        with self.assertRaisesRegex(TypeError, r"outside of jax\.jit"):
            jax.jit(lambda p: optimizer.init(p))(params)
        with self.assertRaisesRegex(TypeError, r"\['params'\]\['a'\] is of type float"):
            optimizer.init({"a": 1.0})
        first = optimizer.init(params)
        with self.assertRaisesRegex(jax_cxl.StoreError, "already has a state"):
            self.pooled(OPTIMIZERS["adamw"], store).init(params)
        grads = gradients(params, batch(0))[1]
        with self.assertRaisesRegex(ValueError, "tree structure"):
            optimizer.step(params, grads["layers"], first)
        params, _ = optimizer.step(params, grads, first)
        grads = gradients(params, batch(0))[1]
        with self.assertRaisesRegex(ValueError, "not the last state .*step 0; .* step 1"):
            optimizer.step(params, grads, first)
        tied = {"a": jnp.ones(3), "b": jnp.ones(3)}
        of_tied = jax_cxl.pooled(OPTIMIZERS["sgd"], store, "tied")
        state = of_tied.init(tied)
        tied["b"] = tied["a"]
        with self.assertRaisesRegex(
            ValueError, r"'a'\] and \['params'\]\['b'\] are the same array"
        ):
            of_tied.step(tied, {"a": jnp.ones(3), "b": jnp.ones(3)}, state)
        optimizer.wait()
        other = self.pooled(OPTIMIZERS["sgd"], store)
        with self.assertRaisesRegex(
            jax_cxl.StoreError,
            r"no state of this optimizer .*: \['state'\]\[0\].count is stored, but not needed",
        ):
            other.restore_latest(params)
        with self.assertRaisesRegex(TypeError, "must be a jax_cxl.Store"):
            jax_cxl.pooled(OPTIMIZERS["sgd"], "shm:x", "state")
        for options, text in (
            ({"master": jnp.int32}, "must be a floating-point dtype"),
            ({"group_bytes": 0}, "group_bytes=0 must be at least 1"),
        ):
            with self.assertRaisesRegex(ValueError, text):
                self.pooled(OPTIMIZERS["sgd"], store, **options)
        self.pooled(OPTIMIZERS["sgd"], store, master=jnp.float32, group_bytes=1)
        with self.assertRaisesRegex(TypeError, "must have the function init"):
            jax_cxl.pooled(lambda: 0, store, "state")

    def test_an_error_in_a_step(self):
        store = self.store()
        optimizer = self.pooled(OPTIMIZERS["adamw"], store)
        params = layers()
        _, params, state = train(optimizer, params, optimizer.init(params), 2)
        grads = gradients(params, batch(2))[1]
        grads["layers"][2]["w"].delete()
        with self.assertRaisesRegex((RuntimeError, ValueError), "deleted"):
            optimizer.step(params, grads, state)
        params, state = optimizer.restore_latest(layers())
        self.assertEqual(state.step, 2)
        losses, params, state = train(optimizer, params, state, 1)
        self.assertEqual(losses, Plain(OPTIMIZERS["adamw"], layers()).run(range(3))[2:])
        store.close()
        with self.assertRaisesRegex(ValueError, "the store was closed"):
            optimizer.step(params, params, state)

    def test_no_state_yet(self):
        self.assertIsNone(self.pooled(OPTIMIZERS["adamw"], self.store()).restore_latest(layers()))

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
                self.pooled(optimizer, self.store()).init(layers())

    def test_damage_of_moments_is_found(self):
        store = self.store()
        optimizer = self.pooled(OPTIMIZERS["adamw"], store, donate=False)
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
        optimizer = self.pooled(OPTIMIZERS["adamw"], store)
        params = layers()
        _, params, state = train(optimizer, params, optimizer.init(params), 2)
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
