"""Saves of trees that have the form of the previous tree, or that only seem to have it.

The saves of trees with the same form are quicker.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import places
from absl.testing import absltest, parameterized

from jax_cxl._store.trees import flatten


def on(spec, *devices):
    mesh = jax.sharding.Mesh(np.array([jax.devices()[d] for d in devices]), ("x",))
    return jax.NamedSharding(mesh, spec)


WIDE = np.arange(8, dtype=np.float32)
KEYS = [jax.random.split(jax.random.key(1, impl=impl), 2) for impl in ("threefry2x32", "rbg")]
# Each makes a leaf of the same tree. Most of the leaves have the same shape and dtype.
VARIANTS = {
    "sharded": lambda: jax.device_put(WIDE, on(jax.P("x"), 0, 1)),
    "reversed": lambda: jax.device_put(WIDE, on(jax.P("x"), 1, 0)),
    "elsewhere": lambda: jax.device_put(WIDE, on(jax.P("x"), 2, 3, 4, 5)),
    "replicated": lambda: jax.device_put(WIDE, on(jax.P(), 0, 1)),
    "one device": lambda: jax.device_put(WIDE, on(jax.P("x"), 0)),
    "uncommitted": lambda: jnp.asarray(WIDE),
    "in host memory": lambda: jax.device_put(
        WIDE, on(jax.P("x"), 0, 1).with_memory_kind("pinned_host")
    ),
    "integers": lambda: jax.device_put(WIDE.astype(np.int32), on(jax.P("x"), 0, 1)),
    "another shape": lambda: jax.device_put(WIDE.reshape(2, 4), on(jax.P("x"), 0, 1)),
    "strong": lambda: jnp.float32(3),
    "weak": lambda: jnp.asarray(3.0),
    "of NumPy": lambda: WIDE.copy(),
    "integers of NumPy": lambda: WIDE.astype(np.int32),
    "a scalar of NumPy": lambda: np.float32(3),
    "keys": lambda: KEYS[0],
    "other keys": lambda: KEYS[1],
    "data of keys": lambda: jax.random.key_data(KEYS[0]),
    "true": lambda: True,
    "one": lambda: 1,
    "1.0": lambda: 1.0,
    "text": lambda: "1",
}


class SameFormTest(parameterized.TestCase):
    def assert_described(self, flattener, tree):
        """Asserts that a flattener describes a tree as a new flattener does."""
        found, expected = (
            each.flatten(tree, (0,)) for each in (flattener, flatten.Flattener(whole=False))
        )
        self.assertEqual(repr(found.description.leaves), repr(expected.description.leaves))
        self.assertEqual(repr(found.values), repr(expected.values))
        for a, b in zip(found.arrays, expected.arrays, strict=True):
            self.assertIs(type(a), type(b))
            if a is not None:
                np.testing.assert_array_equal(np.asarray(a), np.asarray(b))

    def test_each_after_each(self):
        for first, second in itertools.product(VARIANTS.values(), repeat=2):
            flattener = flatten.Flattener(whole=False)
            for make in (first, second, second, first):
                self.assert_described(flattener, {"a": 0, "b": make()})

    def test_each_is_saved_as_it_is(self):
        trees = [{"a": number, "b": make()} for number, make in enumerate(VARIANTS.values())]
        with places.place(trees) as place, place.open() as snapshots:
            for step, tree in enumerate([*trees, *trees[::-1]]):
                for again in range(2):
                    snapshots.save(2 * step + again, tree)
                    snapshots.wait()
                    places.assert_same(self, tree, snapshots.restore(2 * step + again, tree))

    def test_a_tree_with_the_same_leaves(self):
        flattener = flatten.Flattener(whole=False)
        x = jnp.arange(3.0)
        for tree in ({"a": x, "b": x}, {"a": x, "c": x}, [x, x], (x, x), [x, [x]], [x, x, None]):
            self.assert_described(flattener, tree)

    def test_values_that_change_in_place(self):
        array = np.zeros(4, np.int32)
        tree = {"array": array, "n": 0, "x": jnp.zeros(2)}
        with places.place(tree) as place, place.open() as snapshots:
            for step in range(5):
                tree["n"], array[:] = step, step
                snapshots.save(step, tree)
                array[:], tree["n"] = -1, -1
                snapshots.wait()
                found = snapshots.restore(step, tree)
                self.assertEqual((found["n"], list(found["array"])), (step, [step] * 4))


class DonatedTest(absltest.TestCase):
    def state(self):
        leaf = {
            "sharded": jax.device_put(WIDE, on(jax.P("x"), *range(8))),
            "replicated": jax.device_put(WIDE, on(jax.P(), *range(8))),
            "scalar": jax.device_put(np.int32(0), on(jax.P(), *range(8))),
            "bf16": jax.device_put(WIDE.astype(jnp.bfloat16), on(jax.P("x"), *range(8))),
        }
        one = jax.device_put(WIDE, jax.devices()[0])
        return [[leaf, jax.tree.map(lambda x: x + 1, leaf)], [one, one.astype(jnp.int8)]]

    def test_small_arrays_are_saved_as_they_were(self):
        steps = jax.jit(lambda x: jax.tree.map(lambda y: y + 1, x), donate_argnums=0)
        state = self.state()
        expected = jax.tree.map(np.asarray, state)
        with places.place(state) as place, place.open() as snapshots:
            for number in range(6):
                snapshots.save(number, state)
                # On CPUs, arrays that are still being saved cannot be overwritten. So the first
                # step copies them instead.
                for _ in range(3):
                    given, state = jax.tree.leaves(state), [steps(part) for part in state]
                self.assertTrue(all(x.is_deleted() for x in given), "nothing is donated")
                found = snapshots.restore(number, state)
                for a, b in zip(*map(jax.tree.leaves, (expected, found)), strict=True):
                    np.testing.assert_array_equal(np.asarray(b), a)
                expected = jax.tree.map(lambda x: (x + 3).astype(x.dtype), expected)

    def test_an_array_that_is_gone(self):
        program = jax.jit(lambda x: x + 1, donate_argnums=0)

        def donate(x):
            while not x.is_deleted():  # The thread may still be saving it.
                program(x)

        for end in (lambda x: x.delete(), donate):
            for name in ("sharded", "replicated"):
                state = self.state()
                with places.place(state) as place, place.open() as snapshots:
                    for step in range(2):
                        snapshots.save(step, state)
                    end(state[0][0][name])
                    with self.assertRaisesRegex(RuntimeError, rf"\['{name}'\] has been deleted"):
                        snapshots.save(2, state)
                    self.assertEqual(snapshots.latest(), 1)
                    snapshots.save(2, self.state())
                    snapshots.wait()

    def test_memory_is_reused_once_it_has_been_saved(self):
        step = jax.jit(lambda x: x + 1, donate_argnums=0)
        for array in (jnp.zeros(1 << 20), jax.device_put(np.zeros(1 << 20), on(jax.P(), 0))):
            array = step(array)
            with places.place(array) as place, place.open() as snapshots:
                snapshots.save(0, array)
                snapshots.close()
                before = array.unsafe_buffer_pointer()
                self.assertEqual(step(array).unsafe_buffer_pointer(), before)


if __name__ == "__main__":
    absltest.main()
