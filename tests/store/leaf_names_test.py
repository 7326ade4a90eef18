"""Leaves whose names are alike: none is lost, and none is taken for another."""

import jax
import jax.numpy as jnp
import numpy as np
import store_harness as harness
from absl.testing import absltest, parameterized

import jax_cxl
from jax_cxl._store.trees import names

# Trees, and the keys of their leaves without `like`, in the order of jax.tree.leaves.
_TREES = (
    ({"a/b": 1, "a": {"b": 2}}, ["['a']['b']", "['a/b']"]),
    (
        {"['a']['b']": 1, "a/b": 2, "a": {"b": 3}},
        ["""["['a']['b']"]""", "['a']['b']", "['a/b']"],
    ),
    ({"['a/b']": 1, "a/b": 2, "c": 3}, ["""["['a/b']"]""", "a/b", "c"]),
    ({"a": [1, {"0": 2}], "a/1/0": 3}, ["a/0", "['a'][1]['0']", "['a/1/0']"]),
    ({"a": {"/b": 1, "": {"b": 2}}, "c": 3}, ["['a']['']['b']", "['a']['/b']", "c"]),
    (1, [""]),
)


class NamesTest(harness.StoreTest):
    @parameterized.parameters(*_TREES)
    def test_no_leaf_is_lost(self, numbers, keys):
        tree = jax.tree.map(lambda x: jnp.full((5, x), x), numbers)
        expected = dict(zip(keys, jax.tree.leaves(tree), strict=True))
        with self.open() as store:
            store.publish("a", tree)
            store.flush("a")
            first = store.read("a")
            again = store.read("a", into=first)
            with store.view("a") as view:
                for found in (first.tree, again.tree, view.tree):
                    self.assertEqual({*found}, {*expected})
                    for key, x in expected.items():
                        np.testing.assert_array_equal(found[key], x)
                for key, x in expected.items():
                    found = jax.dlpack.from_dlpack(view.dlpack(key))
                    np.testing.assert_array_equal(found, x)

    def test_paths_differ(self):
        # All pairs and triples of names over a few keys.
        parts = ["['a']", "['b']", "['a/b']", "[0]", "['0']", "['']", ".a", """["['a']"]"""]
        every = [*parts, *(a + b for a in parts for b in parts)]
        self.assertLen(names.by_path(dict.fromkeys(every)), len(every))
        found = names.by_path({"['a']['b']": 1, "['c'][0]": 2})
        self.assertEqual(found, {"a/b": 1, "c/0": 2})

    def test_keys_of_another_type(self):
        x = np.arange(3)
        for saved, other, has in (
            ({"1": x}, {1: x}, r"\['1'\]"),
            ({1: x}, {"1": x}, r"\[1\]"),
            ([x], {"0": x}, r"\[0\]"),
            ({"True": x}, {True: x}, r"\['True'\]"),
            ({"c": {"1": x}}, {"c": [x, x]}, None),
        ):
            with self.subTest(str(saved)), self.open() as store:
                store.publish("a", saved)
                store.flush("a")
                message = f"has no leaf .*: it has {has}: use its key" if has else "has no leaf"
                with self.assertRaisesRegex(jax_cxl.StoreError, message):
                    store.read("a", other)
                with self.assertRaisesRegex(jax_cxl.StoreError, message):
                    store.view("a", other)
                np.testing.assert_array_equal(jax.tree.leaves(store.read("a", saved).tree), [x])
                store.delete("a")


if __name__ == "__main__":
    absltest.main()
