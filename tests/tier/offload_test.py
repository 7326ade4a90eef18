"""Trees that go to a store and come back."""

import os
import tempfile
import threading
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest

import jax_cxl
from jax_cxl._tier import offload


class OffloadTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        parent = "/dev/shm" if os.path.isdir("/dev/shm") else None
        folder = self.enter_context(tempfile.TemporaryDirectory(dir=parent))
        self.store = jax_cxl.Store(f"file:{folder}/a?size=32MiB")

    def _tree(self, seed=0):
        mesh = jax_cxl.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
        rows = jax.NamedSharding(mesh, jax.P("x"))
        rng = np.random.default_rng(seed)
        layers = [
            {
                "w": jax.device_put(rng.normal(size=(64, 32)).astype(np.float32), rows),
                "b": jnp.arange(7, dtype=jnp.bfloat16),
            }
            for _ in range(3)
        ]
        return {"layers": layers}

    def _assert_same(self, a, b):
        for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
            self.assertEqual(np.asarray(x).tobytes(), np.asarray(y).tobytes())
            self.assertEqual((x.sharding, x.committed), (y.sharding, y.committed))

    def test_what_is_fetched_is_what_was_offloaded(self):
        tree = self._tree()
        cold = jax_cxl.offload(tree, self.store, "teacher")
        self.assertEqual(cold["layers"][0]["w"].shape, (64, 32))
        self._assert_same(jax_cxl.fetch(cold), tree)
        following = jax_cxl.prefetch(cold["layers"][0])
        for number in range(3):
            layer = following.result()
            following = jax_cxl.prefetch(cold["layers"][(number + 1) % 3])
            self._assert_same(layer, tree["layers"][number])
        mixed = jax_cxl.fetch({"hot": 3, "cold": cold["layers"][1]["b"]})
        self.assertEqual(mixed["hot"], 3)

    def test_fetches_run_one_after_another(self):
        with mock.patch.object(offload, "fetch", lambda _: threading.current_thread()):
            first, second = jax_cxl.prefetch(0).result(), jax_cxl.prefetch(0).result()
        self.assertIs(first, second)

    def test_what_has_gone(self):
        cold = [jax_cxl.offload(self._tree(n), self.store, "tree") for n in range(4)]
        self._assert_same(jax_cxl.fetch(cold[3]), self._tree(3))
        with self.assertRaisesRegex(jax_cxl.StoreError, "'tree', version 0, are gone"):
            jax_cxl.fetch(cold[0])

    def test_a_name_that_is_used_again(self):
        teacher = jax_cxl.offload({"w": jnp.full(4, 1.0)}, self.store, "tree")
        self._assert_same(jax_cxl.fetch(teacher), {"w": jnp.full(4, 1.0)})
        self.store.delete("tree")
        student = jax_cxl.offload({"w": jnp.full(4, 2.0)}, self.store, "tree")
        other = jax_cxl.offload({"w": jnp.full(4, 1.0)}, self.store, "other")
        self.store.delete("other")
        again = jax_cxl.offload({"w": jnp.full(4, 2.0)}, self.store, "other")
        for gone in (teacher, other, jax.tree.map(lambda x: x, teacher)):
            for fetch in (jax_cxl.fetch, lambda x: jax_cxl.prefetch(x).result()):
                with self.assertRaisesRegex(jax_cxl.StoreError, "version 0, are gone"):
                    fetch(gone)
        for there in (student, again):
            self._assert_same(jax_cxl.fetch(there), {"w": jnp.full(4, 2.0)})

    def test_weak_types(self):
        tree = {
            "weak": jnp.asarray(2.0),
            "int": jnp.asarray(3),
            "strong": jnp.float32(2),
            "vector": jnp.broadcast_to(jnp.asarray(2.0), 4),
        }
        found = jax_cxl.fetch(jax_cxl.offload(tree, self.store, "tree"))
        self._assert_same(found, tree)
        other = jnp.ones(2, jnp.bfloat16)
        for name, x in tree.items():
            self.assertEqual(found[name].weak_type, x.weak_type, name)
            self.assertEqual((found[name][..., None] * other).dtype, (x[..., None] * other).dtype)
        self.assertTrue(found["weak"].weak_type)
        self.assertFalse(found["strong"].weak_type)

    def test_wrong_calls(self):
        cold = jax_cxl.offload(self._tree(), self.store, "tree")
        with self.assertRaisesRegex(TypeError, "call it outside"):
            jax.jit(lambda: jax_cxl.fetch(cold))()
        with self.assertRaisesRegex(TypeError, "traced"):
            jax.jit(lambda x: jax_cxl.offload(x, self.store, "tree"))(jnp.ones(3))
        with self.assertRaisesRegex(TypeError, "must be a JAX array"):
            jax_cxl.offload({"a": 1}, self.store, "tree")


if __name__ == "__main__":
    absltest.main()
