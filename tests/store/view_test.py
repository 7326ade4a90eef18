"""Arrays over the memory of a store."""

import gc
import os
import threading

import jax
import jax.numpy as jnp
import numpy as np
import store_harness as harness
from absl.testing import absltest

import jax_cxl


class ViewTest(harness.StoreTest):
    def test_arrays_over_the_memory(self):
        with self.open() as store:
            self.publish(store, "a", 1)
            store.publish("empty", {"x": np.zeros((0, 3), np.int8), "y": 1})
            store.flush("empty")
            with store.view("empty") as view:
                self.assertEqual((view.tree["x"].shape, view.tree["y"]), ((0, 3), 1))
            with store.view("a") as view:
                self.assertEqual(view.version, 1)
                w = view.tree["w"]
                np.testing.assert_array_equal(w, harness.tree(1)["w"])
                self.assertFalse(w.flags.writeable)
                self.assertEqual(w.ctypes.data % 64, 0)
                core = store._names.devices().core
                self.assertBetween(w.ctypes.data, core.base, core.base + core.total_bytes)
                found = jax.dlpack.from_dlpack(view.dlpack("w"))
                np.testing.assert_array_equal(found, w)
                bf16 = jax.dlpack.from_dlpack(view.dlpack("layers/0/b"))
                self.assertEqual(bf16.dtype, jnp.bfloat16)
                view.check()
            like = {"w": jax.ShapeDtypeStruct((700, 1000), jnp.float32)}
            with store.view("a", like) as view:
                self.assertEqual(view.tree["w"].unsafe_buffer_pointer(), w.ctypes.data)
                total = jax.jit(lambda x: x.sum(), donate_argnums=0)(view.tree["w"])
                np.testing.assert_allclose(total, np.sum(np.asarray(w)), rtol=1e-4)
                np.testing.assert_array_equal(w, harness.tree(1)["w"])

    def test_a_version_that_is_viewed_stays(self):
        with self.open() as store, self.open() as reader:
            self.publish(store, "a", 1)
            view = reader.view("a")
            array = view.tree["w"][3:]
            view.close()
            del view
            for version in range(2, 12):
                self.publish(store, "a", version)
                np.testing.assert_array_equal(array, harness.tree(1)["w"][3:])
            self.assertEqual(store.list()[0].versions, (11, 10, 1))
            with self.assertRaisesRegex(jax_cxl.StoreError, "cannot be deleted: process"):
                store.delete("a")
            self.publish(store, "a", 12)
            self.assertEqual(store.list()[0].versions, (12, 11, 1))
            del array
            gc.collect()
            self.publish(store, "a", 13)
            self.assertEqual(store.list()[0].versions, (13, 12, 11))
            store.delete("a")

    def test_all_memory_is_viewed(self):
        os.environ["JAX_CXL_TIMEOUT"] = "0.3"
        self.addCleanup(os.environ.pop, "JAX_CXL_TIMEOUT")
        with self.open() as store, self.open() as reader:
            views = []
            for version in range(1, 3):
                self.publish(store, "a", version)
                views.append(reader.view("a"))
            self.publish(store, "a", 3)
            views.append(reader.view("a"))
            with self.assertRaisesRegex(
                jax_cxl.StoreError, f"is being read, by process {os.getpid()}"
            ):
                store.publish("a", harness.tree(4), version=4)
            for number, view in enumerate(views, 1):
                np.testing.assert_array_equal(view.tree["w"], harness.tree(number)["w"])
            views.pop(0).close()
            del view
            gc.collect()
            self.publish(store, "a", 5)
            self.assert_tree(reader.read("a", harness.tree(0)).tree, 5)

    def test_a_publisher_waits_for_readers(self):
        with self.open() as store, self.open() as reader:
            views = []
            for version in range(3):
                self.publish(store, "a", version)
                views.append(reader.view("a"))

            def release():
                views.clear()
                gc.collect()

            threading.Timer(0.1, release).start()
            self.publish(store, "a", 3)
            self.assertEmpty(views)
            self.assert_tree(store.read("a", harness.tree(0)).tree, 3)

    def test_what_cannot_be_viewed(self):
        mesh = jax.make_mesh((8,), ("x",), (jax.sharding.AxisType.Auto,))
        sharded = jax.device_put(jnp.zeros((8, 4)), jax.NamedSharding(mesh, jax.P("x")))
        replicated = jax.device_put(jnp.ones((8, 4)), jax.NamedSharding(mesh, jax.P()))
        with self.open() as store:
            store.publish("a", {"s": sharded, "r": replicated, "k": jax.random.key(1)})
            store.flush("a")
            view = store.view("a", {"r": np.zeros((8, 4), np.float32)})
            np.testing.assert_array_equal(view.tree["r"], np.ones((8, 4)))
            with self.assertRaisesRegex(jax_cxl.StoreError, r"\['s'\].* 8 shards"):
                store.view("a")
            with self.assertRaisesRegex(jax_cxl.StoreError, "typed PRNG keys"):
                store.view("a", {"k": jax.random.key(0)})
            with self.assertRaisesRegex(jax_cxl.StoreError, "`like` has"):
                store.view("a", {"r": np.zeros((8, 5), np.float32)})


if __name__ == "__main__":
    absltest.main()
