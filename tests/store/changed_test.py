"""A store writes and reads only the blocks that have changed."""

import jax.numpy as jnp
import numpy as np
import store_harness as harness
from absl.testing import absltest, parameterized

import jax_cxl
from jax_cxl._store.memory import layout


class ChangedTest(harness.StoreTest):
    """Blocks that have not changed are neither written nor read."""

    def setUp(self):
        super().setUp()
        rng = np.random.default_rng(0)
        # Each array fills whole blocks, so that no two arrays share a block.
        self.arrays = {f"l{i}": rng.integers(0, 256, 2 * harness.MIB, np.uint8) for i in range(4)}

    def test_writes(self):
        with self.open() as store:
            for version in range(4):
                store.publish("a", self.arrays, version=version)
            store.flush("a")
            devices = store._names.made()
            devices.core = _Counts(devices.core)
            for version in range(4, 8):
                self.arrays["l1"] = self.arrays["l1"] + 1
                devices.core.blocks = 0
                store.publish("a", self.arrays, version=version)
                store.flush("a")
                # Only four blocks are written: the two of array l1, the table and the directory.
                self.assertEqual(devices.core.blocks, 4)
                for name, array in store.read("a").tree.items():
                    np.testing.assert_array_equal(array, self.arrays[name])

    @parameterized.parameters(2, 3)
    def test_parity_is_that_of_all_blocks(self, paths):
        files = [self.path.with_name(f"p{i}") for i in range(paths)]
        where = f"file:{','.join(map(str, files))}?size={48 * harness.MIB}"
        with jax_cxl.Store(where, parity=1) as store:
            for version in range(8):
                self.arrays[f"l{version % 4}"] = self.arrays[f"l{version % 4}"] + 1
                store.publish("a", self.arrays)
            store.flush("a")
        for lost in files:
            content = lost.read_bytes()
            lost.write_bytes(b"")
            with self.assertLogs("jax_cxl", "WARNING"):
                found = jax_cxl.Store(where).read("a").tree
            for name, array in found.items():
                np.testing.assert_array_equal(array, self.arrays[name])
            lost.write_bytes(content)

    def test_another_job_trusts_nothing(self):
        for version in range(6):
            with self.open() as store:
                devices = store._names.made()
                devices.core = _Counts(devices.core)
                store.publish("a", self.arrays, version=version)
                store.flush("a")
                self.assertEqual(devices.core.blocks, 8 + 2)

    @parameterized.parameters(True, False)
    def test_reads_into_the_last_version(self, of_numpy):
        like = self.arrays if of_numpy else None
        with self.open() as store:
            store.publish("a", self.arrays)
            store.flush("a")
            first = store.read("a", like)
            places = {name: x.ctypes.data for name, x in first.tree.items()}
            changed = dict(self.arrays)
            changed["l2"] = changed["l2"].copy()
            changed["l2"][harness.MIB + 5] ^= 1
            store.publish("a", changed)
            store.flush("a")
            devices = store._names.made()
            devices.core = _Counts(devices.core)
            second = store.read("a", like, into=first)
            self.assertLessEqual(devices.core.read_blocks, 1 + 2)
            for name, array in second.tree.items():
                np.testing.assert_array_equal(array, changed[name])
                self.assertEqual(array.ctypes.data, places[name])

    def test_arrays_of_jax_that_did_not_change_stay(self):
        tree = {name: jnp.asarray(x) for name, x in self.arrays.items()}
        with self.open() as store:
            store.publish("a", tree)
            store.flush("a")
            first = store.read("a", tree)
            changed = dict(tree, l0=tree["l0"] + 1)
            store.publish("a", changed)
            store.flush("a")
            second = store.read("a", tree, into=first)
            for name, array in second.tree.items():
                np.testing.assert_array_equal(array, changed[name])
                self.assertEqual(array is first.tree[name], name != "l0")
            # A tree with another structure has to be read as a whole.
            store.publish("b", {"l0": tree["l0"]})
            store.flush("b")
            other = store.read("b", {"l0": tree["l0"]}, into=second)
            np.testing.assert_array_equal(other.tree["l0"], tree["l0"])


class _Counts:
    """A mapping that counts the blocks that are written and read."""

    def __init__(self, core):
        self._core = core
        self.blocks = self.read_blocks = 0

    def write(self, device, offset, data):
        self.blocks += len(data) == layout.BLOCK_BYTES
        self._core.write(device, offset, data)

    def read(self, device, offset, out):
        self.read_blocks += len(out) // layout.BLOCK_BYTES
        self._core.read(device, offset, out)

    def __getattr__(self, name):
        return getattr(self._core, name)


if __name__ == "__main__":
    absltest.main()
