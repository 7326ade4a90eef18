"""From the third save of a tree on, compiled programs join its small arrays into larger ones."""

import jax
import jax.numpy as jnp
import numpy as np
import places
import random_tree
from absl.testing import absltest, parameterized
from jax._src import sharding_impls
from jax.experimental.layout import Format, Layout

from jax_cxl._store.writing import joining, shard_bytes


class JoiningTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.enterContext(absltest.mock.patch.object(shard_bytes, "FEWEST_JOINED", 1))
        self.enterContext(absltest.mock.patch.object(joining, "_TOGETHER", 3))
        self.joined = 0  # arrays
        original = joining.Group.split

        def split(group, joined, views):
            self.joined += len(group.leaves)
            original(group, joined, views)

        self.enterContext(absltest.mock.patch.object(joining.Group, "split", split))

    def save_twice(self, snapshots, tree):
        for step in range(2):
            snapshots.save(step, tree)
        self.assertEqual(self.joined, 0)
        snapshots._publisher._selection[2]._joiner._groups.result()  # Programs are compiled.

    @parameterized.parameters(range(4))
    def test_random_trees(self, seed):
        tree = random_tree.tree(np.random.default_rng(seed))
        with places.place(tree) as place, place.open() as snapshots:
            self.save_twice(snapshots, tree)
            for step in (2, 3):
                snapshots.save(step, tree)
                places.assert_same(self, tree, snapshots.restore(step, tree))
        self.assertGreater(self.joined, 0)

    def test_new_values_of_which_some_are_donated(self):
        devices = np.array(jax.devices()[:2])
        sharding = jax.NamedSharding(jax.sharding.Mesh(devices, ("x",)), jax.P("x"))
        tree = [jax.device_put(np.arange(4.0) + n, sharding) for n in range(5)]
        tree += [jnp.full((2, 3), n) for n in range(4)] + [np.arange(3), jnp.zeros((0, 2))]
        add = jax.jit(lambda arrays: [x + 1 for x in arrays], donate_argnums=0)
        with places.place(tree) as place, place.open() as snapshots:
            self.save_twice(snapshots, tree)
            for step in range(2, 6):
                expected = jax.tree.map(np.array, tree)
                snapshots.save(step, tree)
                tree[:9] = add(tree[:5]) + add(tree[5:9])
                tree[9] += 1
                places.assert_same(self, expected, snapshots.restore(step, expected))
                self.assertEqual(self.joined, 9 * (step - 1))

    def test_an_array_with_another_layout_is_not_joined(self):
        x = jnp.arange(12.0).reshape(3, 4)
        other = jax.device_put(x, Format(Layout((1, 0)), x.sharding))
        with places.place([x]) as place, place.open() as snapshots:
            self.save_twice(snapshots, [x])
            for step, (array, joined) in enumerate([(other, 0), (x, 1), (other, 1)], 2):
                snapshots.save(step, [array])
                places.assert_same(self, [np.asarray(x)], snapshots.restore(step, [np.asarray(x)]))
                self.assertEqual(self.joined, joined)

    def test_arrays_whose_sharding_names_no_mesh_are_not_joined(self):
        devices = tuple(jax.devices()[:4])
        named = jax.NamedSharding(jax.make_mesh((4,), ("x",), devices=devices), jax.P("x"))
        other = sharding_impls.GSPMDSharding(devices, named._to_xla_hlo_sharding(1))
        tree = [jax.device_put(np.arange(16.0) + 100 * n, other) for n in range(5)]
        with places.place(tree) as place, place.open() as snapshots:
            self.save_twice(snapshots, tree)
            snapshots.save(2, tree)
            expected = [np.asarray(x) for x in tree]
            places.assert_same(self, expected, snapshots.restore(2, expected))
            self.assertEqual(self.joined, 0)

    def test_large_arrays_are_not_joined(self):
        tree = {"small": jnp.ones(joining._MOST_BYTES, np.int8)}
        tree["large"] = jnp.ones(joining._MOST_BYTES + 1, np.int8)
        with places.place(tree) as place, place.open() as snapshots:
            self.save_twice(snapshots, tree)
            snapshots.save(2, tree)
            self.assertEqual(self.joined, 1)


if __name__ == "__main__":
    absltest.main()
