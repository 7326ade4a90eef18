"""A tree is refused at once if a snapshot cannot hold it, or if the memory has no room for it."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import places
import shared_folder
from absl.testing import absltest, parameterized

import jax_cxl
from jax_cxl import errors
from jax_cxl._store.memory import layout
from jax_cxl._store.trees import flatten


def _number(pattern: str, error: Exception) -> int:
    (found,) = re.findall(pattern, str(error))
    return int(found)


class TooSmallTest(parameterized.TestCase):
    @parameterized.product(paths_parity=((1, 0), (3, 0), (2, 1), (5, 1)), keep=(2, 5))
    def test_number_of_bytes_in_the_error_is_exact(self, paths_parity, keep):
        paths, parity = paths_parity
        tree = {"a": jnp.zeros(500_000), "b": np.zeros(70_000), "name": "x" * 100}
        with shared_folder.folder() as folder:
            kept = {"a": jnp.ones(3)}
            size = jax_cxl.Snapshots.bytes_needed(kept, keep=keep, parity=parity, paths=paths)
            small = places.Place(folder, size, paths)
            snapshots = small.open(keep=keep, parity=parity)
            snapshots.save(0, kept)
            snapshots.wait()
            before = small.contents()
            with self.assertRaises(errors.PoolTooSmallError) as caught:
                snapshots.save(1, tree)
            self.assertEqual(small.contents(), before)
            self.assertEqual(snapshots.latest(), 0)
            needed = _number(r"with size=(\d+) or more", caught.exception)
        self.assertEqual(
            needed, jax_cxl.Snapshots.bytes_needed(tree, keep=keep, parity=parity, paths=paths)
        )
        for size, enough in ((needed, True), (needed - layout.PAGE_BYTES, False)):
            with shared_folder.folder() as folder:
                snapshots = places.Place(folder, size, paths).open(keep=keep, parity=parity)
                if not enough:
                    with self.assertRaisesRegex(errors.PoolTooSmallError, f"size={needed}"):
                        snapshots.save(0, tree)
                    continue
                # The saves use all of the keep + 1 areas of the memory. Each has room for the tree.
                for step in range(keep + 1):
                    snapshots.save(step, tree)
                snapshots.wait()
                for step in range(1, keep + 1):
                    places.assert_same(self, tree, snapshots.restore(step, tree))

    def test_the_part_that_does_not_depend_on_the_tree(self):
        """The documents name these sizes (docs/store.md, docs/offload.md)."""
        tree = {"x": jnp.zeros(16)}
        self.assertEqual(jax_cxl.Snapshots.bytes_needed(tree), 11_161_600)
        for processes in range(1, 4):
            flat = flatten.Flattener(whole=False).flatten(tree, tuple(range(processes)))
            for keep in (2, 5):
                geometry = layout.Geometry(keep, 0, 1, 0, 0)
                needed = flat.description.section_bytes(flat.values, geometry)
                areas = (keep + 1) * (1.3e6 + 2.1e6 * processes)
                self.assertAlmostEqual(
                    layout.SECTIONS_OFFSET + needed, 0.94e6 + areas, delta=0.01 * areas
                )

    def test_too_small_for_anything(self):
        with shared_folder.folder() as folder:
            with self.assertRaises(errors.PoolTooSmallError) as caught:
                places.Place(folder, 64 << 10).open()._look(make=True)
            needed = _number(r"at least (\d+) bytes", caught.exception)
            with self.assertRaises(errors.PoolTooSmallError) as caught:
                places.Place(folder, needed).open(keep=2)._look(make=True)
            needed = _number(r"needs (\d+) bytes of each path", caught.exception)
        with shared_folder.folder() as folder:
            place = places.Place(folder, layout.SECTIONS_OFFSET + needed)
            place.open(keep=2)._look(make=True)

    def test_parts_of_a_path(self):
        tree = jnp.zeros(8_000_000)
        with shared_folder.folder() as folder:
            place = places.Place(folder, 24 << 20)
            place.where += "&devices=3"
            with self.assertRaises(errors.PoolTooSmallError) as caught:
                place.open(parity=1).save(0, tree)
            needed = _number(r"with size=(\d+) or more", caught.exception)
        with shared_folder.folder() as folder:
            place = places.Place(folder, needed)
            place.where += "&devices=3"
            snapshots = place.open(parity=1)
            snapshots.save(0, tree)
            snapshots.wait()
            self.assertEqual(snapshots.latest(), 0)

    def test_long_python_values_have_room(self):
        tree = {"w": jnp.zeros(10), "text": ""}
        long = {**tree, "text": np.random.default_rng(0).bytes(2_000_000).hex()}
        with places.place(tree) as place:
            snapshots = place.open()
            for step in (0, 1):
                snapshots.save(step, tree)
            snapshots.wait()
            with self.assertRaisesRegex(errors.PoolTooSmallError, "too small for this tree"):
                snapshots.save(2, long)
            places.assert_same(self, tree, snapshots.restore(0, tree))
            places.assert_same(self, tree, snapshots.restore(1, tree))
        with places.place(long) as place:
            snapshots = place.open()
            for step in (0, 1):
                snapshots.save(step, long)
            snapshots.wait()
            places.assert_same(self, long, snapshots.restore(0, tree))
            places.assert_same(self, long, snapshots.restore(1, tree))


class WrongTreeTest(parameterized.TestCase):
    @parameterized.named_parameters(
        ("object", np.array([None]), "dtype.'O'"),
        ("text", np.array(["a"]), "dtype.'<U1'"),
        ("big_endian", np.arange(3, dtype=">f4"), "dtype.'>f4'"),
        ("structure", np.zeros(2, [("a", np.int32)]), "'a'"),
        ("time", np.zeros(2, "M8[s]"), "M8"),
        ("bytes", b"abc", "of type bytes"),
        ("complex", 1j, "of type complex"),
        ("struct", jax.ShapeDtypeStruct((2,), np.float32), "ShapeDtypeStruct"),
    )
    def test_leaf(self, leaf, why):
        with places.place({"good": np.zeros(3)}) as place:
            snapshots = place.open()
            with self.assertRaisesRegex(TypeError, why) as caught:
                snapshots.save(0, {"good": np.zeros(3), "bad": [0, leaf]})
            self.assertIn("['bad'][1]", str(caught.exception))
            self.assertIsNone(snapshots.latest())

    def test_two_leaves_of_one_name(self):
        class Twins(tuple):
            pass

        jax.tree_util.register_pytree_with_keys(
            Twins,
            lambda t: (tuple((jax.tree_util.GetAttrKey("twin"), x) for x in t), None),
            lambda _, children: Twins(children),
        )
        twice = self.assertRaisesRegex(TypeError, r"two leaves named \['a'\].twin")
        with places.place(0) as place, twice:
            place.open().save(0, {"a": Twins([1, 2]), "b": 3})

    @parameterized.parameters(
        ({"keep": 2.5}, TypeError, "keep=2.5 must be an int, not float"),
        ({"keep": True}, TypeError, "keep=True must be an int, not bool"),
        ({"keep": "2"}, TypeError, "keep='2' must be an int, not str"),
        ({"keep": 1}, ValueError, "keep=1 must be from 2 to 65535"),
        ({"parity": True}, TypeError, "parity=True must be an int"),
        ({"parity": 2}, ValueError, "parity=2 must be 0, or 1"),
        ({"parity": None}, TypeError, "parity=None must be an int"),
    )
    def test_arguments(self, options, error, text):
        with places.place(0) as place:
            with self.assertRaisesRegex(error, text):
                place.open(**options)
            self.assertFalse(place.paths[0].exists())
        with self.assertRaisesRegex(error, text):
            jax_cxl.Snapshots.bytes_needed(0, **options)

    def test_other_arguments(self):
        with self.assertRaisesRegex(TypeError, "where=3 must be a str"):
            jax_cxl.Snapshots(3)
        for paths, parity in ((0, 0), (1, 1)):
            least = f"paths={paths} must be at least {parity + 1} with parity={parity}"
            with self.assertRaisesRegex(ValueError, least):
                jax_cxl.Snapshots.bytes_needed(0, paths=paths, parity=parity)
        with places.place(0) as place, place.open() as snapshots:
            with self.assertRaisesRegex(TypeError, "copy=1 must be True or False"):
                snapshots.save(1, 0, copy=1)
            for timeout in ("1", True, [1]):
                with self.assertRaisesRegex(TypeError, "must be a number of seconds"):
                    snapshots.wait(timeout)
            for timeout in (-1, float("nan")):
                with self.assertRaisesRegex(ValueError, "must be at least 0 seconds"):
                    snapshots.wait(timeout)
            with self.assertRaisesRegex(TypeError, "step='1' must be an int, not str"):
                snapshots.restore("1", 0)

    def test_a_step_that_does_not_grow(self):
        with places.place(0) as place:
            snapshots = place.open()
            snapshots.save(3, 0)
            for step in (3, 2, 3):
                with self.assertRaisesRegex(ValueError, "must be greater than 3"):
                    snapshots.save(step, 0)
            self.assertEqual(snapshots.latest(), 3)
            snapshots.save(2, 0)
            snapshots.wait()
            self.assertEqual(snapshots.latest(), 2)

    @parameterized.parameters(
        (-1, ValueError), (1 << 63, ValueError), (1.5, TypeError), (True, TypeError)
    )
    def test_step(self, step, error):
        with places.place(0) as place:
            snapshots = place.open()
            with self.assertRaises(error):
                snapshots.save(step, 0)
            snapshots.save(np.int64((1 << 63) - 1), 0)
            snapshots.wait()
            self.assertEqual(snapshots.latest(), (1 << 63) - 1)


if __name__ == "__main__":
    absltest.main()
