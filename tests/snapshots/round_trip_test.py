"""A restored tree has the same bits as the saved tree, on any devices."""

import gc
import os
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import places
import random_tree
from absl.testing import absltest, parameterized

import jax_cxl

# How many saves a test makes. With 10_000 it takes about ten times as long.
_SAVES = int(os.environ.get("JAX_CXL_TEST_SAVES", "1000"))


class RoundTripTest(parameterized.TestCase):
    @parameterized.named_parameters(
        (f"{paths}_paths_parity_{parity}_seed_{seed}", paths, parity, seed)
        for seed, (paths, parity) in enumerate(
            [(1, 0), (2, 0), (3, 0), (5, 0), (2, 1), (3, 1), (5, 1), (3, 1)]
        )
    )
    def test_random_trees_on_random_devices(self, paths, parity, seed):
        rng = np.random.default_rng(seed)
        trees = [random_tree.tree(rng) for _ in range(2)]
        with places.place(trees, paths=paths, parity=parity) as place:
            with place.open(parity=parity) as snapshots:
                for step, tree in enumerate(trees):
                    snapshots.save(step, tree)
                snapshots.wait()
            again = place.open(parity=parity)
            self.assertEqual(again.latest(), 1)
            for step, tree in enumerate(trees):
                like = random_tree.elsewhere(rng, tree)
                found = again.restore(step, like)
                places.assert_same(self, tree, found)
                for asked, got in zip(jax.tree.leaves(like), jax.tree.leaves(found), strict=True):
                    if hasattr(asked, "sharding"):
                        self.assertTrue(
                            got.sharding.is_equivalent_to(asked.sharding, got.ndim),
                            f"{got.sharding} is not {asked.sharding}",
                        )

    def test_every_dtype_of_jax_is_among_the_random_ones(self):
        names = [name for name in dir(jnp) if self._is_on_devices(name)]
        self.assertCountEqual(names, random_tree.DTYPES)

    def _is_on_devices(self, name):
        dtype = getattr(getattr(jnp, name), "dtype", None)
        if not isinstance(dtype, np.dtype) or dtype.name != name:
            return False
        if jax.dtypes.canonicalize_dtype(dtype) != dtype:
            return False  # without jax_enable_x64
        try:
            jax.jit(lambda x: x[:1] != x[1:])(jax.device_put(np.zeros(2, dtype)))
        except (jax.errors.JaxRuntimeError, ValueError):
            return False  # XLA has no programs that compute with it
        return True

    def test_part_of_a_tree(self):
        tree = {"params": {"w": jnp.arange(12.0)}, "opt": [jnp.ones(3), jnp.zeros(3)]}
        with places.place(tree) as place:
            snapshots = place.open()
            snapshots.save(0, tree)
            snapshots.wait()
            params = {"params": {"w": jax.ShapeDtypeStruct((12,), jnp.float32)}}
            places.assert_same(self, {"params": tree["params"]}, snapshots.restore(0, params))
            with self.assertRaisesRegex(jax_cxl.StoreError, r"has no leaf \['opt'\]\[2\]"):
                snapshots.restore(0, {"opt": [*tree["opt"], jnp.ones(1)]})

    def test_sixty_four_bits(self):
        tree = [np.float64(1 / 3), np.arange(3, dtype=np.int64) << 40]
        with places.place(tree) as place:
            snapshots = place.open()
            with jax.enable_x64(True):
                on_devices = jax.tree.map(jnp.asarray, tree)
                snapshots.save(0, on_devices)
                snapshots.wait()
                places.assert_same(self, on_devices, snapshots.restore(0, on_devices))
            with self.assertRaisesRegex(jax_cxl.StoreError, "jax_enable_x64"):
                snapshots.restore(0, [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in tree])

    def test_donated_arrays_are_saved_as_they_were(self):
        step = jax.jit(lambda x: x + 1, donate_argnums=0)
        mesh = jax.make_mesh((8,), ("x",), (jax.sharding.AxisType.Auto,))
        state = jax.device_put(
            jnp.zeros((8, 1 << 17), jnp.float32), jax.NamedSharding(mesh, jax.P("x"))
        )
        with places.place(state) as place:
            snapshots = place.open()
            for number in range(8):
                snapshots.save(number, state)
                # The thread that saves `state` may still copy it while `step` overwrites it.
                for _ in range(3):
                    given, state = state, step(state)
                self.assertTrue(given.is_deleted(), "nothing is donated")
                snapshots.wait()
                found = snapshots.restore(number, state)
                np.testing.assert_array_equal(found, np.full(state.shape, 3 * number))

    def test_numpy_arrays_are_saved_as_they_were(self):
        state = np.zeros(1 << 20, np.uint8)
        with places.place(state) as place:
            snapshots = place.open()
            for number in range(20):
                snapshots.save(number, state)
                state[:] = number + 1
                snapshots.wait()
                found = snapshots.restore(number, state)
                self.assertEqual((found.min(), found.max()), (number, number))

    def test_many_saves_take_no_more_memory_files_or_descriptors(self):
        tree = {"w": np.zeros(1000, np.float32), "step": 0}
        # Threads of earlier tests may still be ending, so they do not count.
        earlier = set(threading.enumerate())
        with places.place(tree) as place:
            snapshots = place.open()

            def save(numbers):
                for number in numbers:
                    tree["w"][:] = number
                    tree["step"] = number
                    snapshots.save(number, tree)

            def held():
                snapshots.wait()
                gc.collect()
                with open("/proc/self/statm") as file:
                    pages = int(file.read().split()[1])
                descriptors = len(os.listdir("/proc/self/fd"))
                threads = len(set(threading.enumerate()) - earlier)
                files = os.listdir(place.paths[0].parent)
                return pages * os.sysconf("SC_PAGE_SIZE"), descriptors, threads, files

            save(range(100))
            before = held()
            objects = sys.getallocatedblocks()
            save(range(100, 100 + _SAVES))
            after = held()
            self.assertLess(after[0] - before[0], 2 << 20, "bytes of this process")
            self.assertEqual(after[1:], before[1:], "descriptors, threads, files")
            self.assertLess(sys.getallocatedblocks() - objects, 5000)
            self.assertEqual(place.paths[0].stat().st_size, place.size)
            places.assert_same(self, (99 + _SAVES, tree), snapshots.restore_latest(tree))

    def test_saves_that_are_gone(self):
        tree = {"x": np.arange(9)}
        with places.place(tree) as place, place.open() as snapshots:
            for step in range(7):
                snapshots.save(step, tree)
            snapshots.wait()
            section = places.section(place)
            valid = [records[0].number for records in section.all_valid()]
            found = [n for n in range(1, max(valid) + 4) if section.complete(n)]
            self.assertEqual(found, sorted(valid))


if __name__ == "__main__":
    absltest.main()
