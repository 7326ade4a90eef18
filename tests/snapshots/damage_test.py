"""A damaged byte, wherever it is, never becomes a wrong value. Parity restores it."""

import collections
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import places
from absl.testing import absltest, parameterized

import jax_cxl
from jax_cxl._store.memory import layout, opening


def _tree(step: int):
    rng = np.random.default_rng(step)
    mesh = jax.make_mesh((4,), ("x",), (jax.sharding.AxisType.Auto,))
    large = jax.device_put(
        rng.standard_normal((4, 150_001), np.float32), jax.NamedSharding(mesh, jax.P("x"))
    )
    return {"large": large, "small": jnp.arange(3) + step, "step": step}


def _save_two(place, **options):
    with place.open(**options) as snapshots:
        for step in (0, 1):
            snapshots.save(step, _tree(step))
        snapshots.wait()


def _bytes_of(place, step, count, seed):
    """Returns (kind, device, offset) of bytes that the snapshot of `step` uses.

    For each kind of part, these are the first and the last byte of a part, and `count` random
    bytes.
    """
    rng = np.random.default_rng(seed)
    by_kind = collections.defaultdict(list)
    for kind, device, offset, size in places.used(place, step):
        by_kind[kind].append((device, offset, size))
    found = []
    for kind, parts in by_kind.items():
        device, offset, size = parts[0]
        found += [(kind, device, offset), (kind, device, offset + size - 1)]
        for _ in range(count):
            device, offset, size = parts[rng.integers(len(parts))]
            found.append((kind, device, offset + int(rng.integers(size))))
    return found


class DamageTest(parameterized.TestCase):
    @parameterized.parameters((1, 0), (3, 0), (2, 1), (4, 1))
    def test_one_byte(self, paths, parity):
        trees = [_tree(0), _tree(1)]
        with places.place(trees[0], paths=paths, parity=parity) as place:
            _save_two(place, parity=parity)
            tried = collections.Counter()
            for kind, device, offset in _bytes_of(place, 1, 6, seed=paths):
                with self.subTest(kind=kind, device=device, offset=offset):
                    place.flip(device, offset, mask=1 << offset % 8)
                    tried[kind] += 1
                    try:
                        self._restore(place, parity, kind, device, trees)
                    finally:
                        place.flip(device, offset, mask=1 << offset % 8)
            expected = {"superblock", "record", "data", "table", "directory"}
            self.assertEqual(set(tried), expected | ({"parity"} if parity else set()))
            found = place.open(parity=parity).restore_latest(trees[1])
            places.assert_same(self, (1, trees[1]), found)

    def _restore(self, place, parity, kind, device, trees):
        snapshots = place.open(parity=parity)
        if parity or kind == "superblock" or (kind == "record" and device > 0):
            with self.assertNoLogs("jax_cxl"):
                places.assert_same(self, (1, trees[1]), snapshots.restore_latest(trees[1]))
            return
        if kind == "record":  # Then it is not a snapshot.
            self.assertEqual(snapshots.latest(), 0)
            places.assert_same(self, (0, trees[0]), snapshots.restore_latest(trees[0]))
            return
        self.assertEqual(snapshots.latest(), 1)
        with self.assertRaisesRegex(jax_cxl.StoreError, "damaged"):
            snapshots.restore(1, trees[1])
        with self.assertLogs("jax_cxl", "WARNING") as logs:
            places.assert_same(self, (0, trees[0]), snapshots.restore_latest(trees[0]))
        self.assertRegex(logs.output[0], "snapshot of step 1 is not used: .*damaged")

    def test_all_are_damaged(self):
        tree = _tree(0)
        with places.place(tree) as place:
            _save_two(place)
            for step in (0, 1):
                kind, device, offset, _ = places.used(place, step)[-1]
                self.assertEqual(kind, "directory")
                place.flip(device, offset)
            with (
                self.assertLogs("jax_cxl", "WARNING") as logs,
                self.assertRaisesRegex(jax_cxl.StoreError, "directory of process 0 is damaged"),
            ):
                place.open().restore_latest(tree)
            self.assertLen(logs.output, 2)

    def test_parity_does_not_hide_two_damages_of_a_row(self):
        trees = [_tree(0), _tree(1)]
        with places.place(trees[0], paths=3, parity=1) as place:
            _save_two(place, parity=1)
            data = [part for part in places.used(place, 1) if part[0] == "data"]
            (_, one, row, _), (_, other, same_row, _) = data[:2]
            self.assertEqual(row, same_row)
            place.flip(one, row)
            place.flip(other, row)
            snapshots = place.open(parity=1)
            with self.assertLogs("jax_cxl", "WARNING"):
                places.assert_same(self, (0, trees[0]), snapshots.restore_latest(trees[0]))

    def test_the_next_save_mends_what_is_damaged(self):
        with places.place(_tree(0)) as place:
            _save_two(place)
            for kind, device, offset, _ in places.used(place, 1):
                if kind not in ("superblock", "record"):
                    place.flip(device, offset + 1000)
            snapshots = place.open()
            with self.assertLogs("jax_cxl", "WARNING"):
                step, _ = snapshots.restore_latest(_tree(0))
            self.assertEqual(step, 0)
            snapshots.save(5, _tree(5))
            snapshots.wait()
            self.assertEqual([snapshots.latest()], [5])
            places.assert_same(self, _tree(5), snapshots.restore(5, _tree(0)))
            # The new snapshot has taken the place of the damaged one, so the snapshot of step 0 is
            # still there.
            places.assert_same(self, _tree(0), snapshots.restore(0, _tree(0)))

    def test_a_job_saves_on_if_a_table_of_its_own_is_damaged(self):
        with places.place(_tree(0)) as place:
            snapshots = place.open()
            for step in range(3):
                snapshots.save(step, _tree(step))
            snapshots.wait()
            for kind, device, offset, _ in places.used(place, 0):
                if kind == "table":
                    place.flip(device, offset)
            snapshots.save(3, _tree(3))
            snapshots.wait()
            places.assert_same(self, (3, _tree(3)), snapshots.restore_latest(_tree(0)))


class StartTest(absltest.TestCase):
    def test_processes_that_start_together_prepare_new_memory(self):
        """Each process may look at memory of which another has prepared only some devices."""
        with places.place(_tree(0), paths=3) as place:
            place.open()._look(make=True)
            prepared = [content[: layout.PAGE_BYTES] for content in place.contents()]
            for device in range(3):
                place.zero(device)
            place.paths[0].write_bytes(prepared[0] + bytes(place.size - layout.PAGE_BYTES))

            def prepare_the_rest():
                for device in (1, 2):
                    time.sleep(2 * opening.SETTLE_SECONDS)
                    with open(place.paths[device], "r+b") as file:
                        file.write(prepared[device])

            other = threading.Thread(target=prepare_the_rest)
            other.start()
            try:
                self.assertIsNone(place.open().latest())
            finally:
                other.join()


class ForeignTest(parameterized.TestCase):
    """Memory that holds something else is refused, and stays as it is."""

    def _refused(self, place, why, **options):
        before = place.contents()
        with self.assertRaisesRegex(jax_cxl.StoreError, why):
            place.open(**options)
        self.assertEqual(place.contents(), before)

    @parameterized.product(parity=(0, 1), device=(0, 1, 2))
    def test_another_file(self, parity, device):
        tree = _tree(0)
        with places.place(tree, paths=3, parity=parity) as place:
            _save_two(place, parity=parity)
            place.paths[device].write_bytes(b"A novel.\n" + bytes(place.size))
            self._refused(place, f"device{device} holds other data at byte 0", parity=parity)

    def test_other_arguments(self):
        tree = _tree(0)
        with places.place(tree, paths=2, keep=3, parity=1) as place:
            _save_two(place, keep=3, parity=1)
            self._refused(place, "made with keep=3, not keep=2", parity=1)
            self._refused(place, "made with parity=1.*this is parity=0", keep=3)
            other = places.Place(str(place.paths[0].parent), place.size - 4096, 2)
            self._refused(other, f"{place.size} bytes each, and this", keep=3, parity=1)
            other.paths.reverse()
            other.where = f"file:{','.join(map(str, other.paths))}?size={place.size}"
            self._refused(other, "device 1 of 2", keep=3, parity=1)
            place.open(keep=3, parity=1)

    @parameterized.product(parity=(0, 1))
    def test_another_version_of_the_format(self, parity):
        tree = _tree(0)
        with places.place(tree, paths=2, parity=parity) as place:
            _save_two(place, parity=parity)
            version = layout._VERSION
            try:
                layout._VERSION = version + 1
                self._refused(
                    place,
                    f"it has format {version}.*, but .* uses format {version + 1}",
                    parity=parity,
                )
            finally:
                layout._VERSION = version

    @parameterized.product(parity=(0, 1))
    def test_two_lost_paths(self, parity):
        tree = _tree(0)
        with places.place(tree, paths=3, parity=parity) as place:
            _save_two(place, parity=parity)
            for device in range(1 + parity):
                place.zero(device)
            self._refused(place, f"device0: it is empty.*with parity={parity} only", parity=parity)

    def test_a_snapshot_that_does_not_fit(self):
        with places.place(_tree(0)) as place:
            _save_two(place)
            snapshots = place.open()
            for like, why in [
                (
                    {"large": jnp.zeros((4, 150_000))},
                    "saved with shape .4, 150001., and `like`",
                ),
                (
                    {"large": jnp.zeros((4, 150_001), jnp.bfloat16)},
                    "saved as float32, and `like` has",
                ),
                ({"large": 1}, "is an array"),
                ({"step": jnp.zeros(())}, "is the value 1, not an array"),
                ({"small": jax.random.key(0)}, "was saved as an array, and `like` has"),
                ({"other": 1}, r"has no leaf \['other'\]"),
                (jnp.zeros(1), "has no leaf .the whole tree."),
            ]:
                with self.assertRaisesRegex(jax_cxl.StoreError, why):
                    snapshots.restore(1, like)
            with self.assertRaisesRegex(jax_cxl.StoreError, "no valid snapshot of step 7"):
                snapshots.restore(7, _tree(0))


if __name__ == "__main__":
    absltest.main()
