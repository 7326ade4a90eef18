"""A store in one process: what is published is read, in every way, and what is refused."""

import gc
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from absl.testing import absltest, parameterized

import jax_cxl
from jax_cxl._store.memory import catalog, layout, opening

_MIB = 1 << 20


def _tree(version: int):
    rng = np.random.default_rng(version)
    return {
        "w": jnp.asarray(rng.standard_normal((700, 1000), np.float32)),
        "layers": [{"b": jnp.asarray(rng.standard_normal(5).astype(ml_dtypes.bfloat16))}],
        "count": jnp.int32(version),
        "key": jax.random.key(version),
        "host": rng.integers(0, 9, 3),
        "step": version,
        "none": None,
    }


class _StoreTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        parent = "/dev/shm" if os.path.isdir("/dev/shm") else None
        folder = tempfile.TemporaryDirectory(prefix="jax_cxl_test_store.", dir=parent)
        self.addCleanup(folder.cleanup)
        self.where = f"file:{folder.name}/a?size={64 * _MIB}"
        self.path = pathlib.Path(folder.name, "a")

    def open(self) -> jax_cxl.Store:
        return jax_cxl.Store(self.where)

    def publish(self, store, name, version, **options):
        store.publish(name, _tree(version), version=version, **options)
        store.flush(name)

    def assert_tree(self, found, version):
        expected = _tree(version)
        is_leaf = lambda x: x is None  # noqa: E731
        self.assertEqual(
            jax.tree.structure(found, is_leaf=is_leaf),
            jax.tree.structure(expected, is_leaf=is_leaf),
        )
        for (path, a), b in zip(
            jax.tree_util.tree_leaves_with_path(expected), jax.tree.leaves(found), strict=True
        ):
            name = jax.tree_util.keystr(path)
            if hasattr(a, "dtype") and jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key):
                a, b = jax.random.key_data(a), jax.random.key_data(b)
            self.assertEqual(np.asarray(a).dtype, np.asarray(b).dtype, name)
            self.assertEqual(np.asarray(a).tobytes(), np.asarray(b).tobytes(), name)


class ReadTest(_StoreTest):
    def test_versions_of_several_names(self):
        with self.open() as store, self.open() as reader:
            for version in range(5):
                for name in ("policy", "critic/α"):
                    self.publish(store, name, version + len(name))
            for name in ("policy", "critic/α"):
                newest = 4 + len(name)
                version, tree = reader.read(name, _tree(0))
                self.assertEqual(version, newest)
                self.assert_tree(tree, newest)
                self.assert_tree(reader.read(name, _tree(0), version=newest - 1).tree, newest - 1)
                with self.assertRaisesRegex(jax_cxl.StoreError, "no version 0, only"):
                    reader.read(name, version=0)
            listed = reader.list()
            self.assertEqual([of.name for of in listed], ["critic/α", "policy"])
            self.assertEqual(listed[1].versions[:2], (10, 9))
            self.assertEqual(store.publish("policy", _tree(0)), 11, "the next number")

    def test_without_like_all_leaves_are_arrays_of_numpy(self):
        with self.open() as store:
            self.publish(store, "a", 3)
            version, tree = store.read("a")
            expected = _tree(3)
            self.assertEqual(version, 3)
            self.assertSameElements(
                tree, ["w", "layers/0/b", "count", "key", "host", "step", "none"]
            )
            self.assertEqual(tree["layers/0/b"].dtype, ml_dtypes.bfloat16)
            np.testing.assert_array_equal(tree["w"], expected["w"])
            np.testing.assert_array_equal(tree["key"], jax.random.key_data(expected["key"]))
            self.assertEqual((tree["step"], tree["none"]), (3, None))

    def test_any_sharding(self):
        mesh = jax.make_mesh((8,), ("x",), (jax.sharding.AxisType.Auto,))
        x = jnp.arange(640.0 * 100).reshape(640, 100)
        with self.open() as store:
            store.publish("a", jax.device_put(x, jax.NamedSharding(mesh, jax.P("x"))))
            store.flush("a")
            for spec in (jax.P(), jax.P("x"), jax.P(None)):
                sharding = jax.NamedSharding(mesh, spec)
                like = jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)
                found = store.read("a", like).tree
                self.assertEqual(found.sharding, sharding)
                np.testing.assert_array_equal(found, x)

    def test_a_process_without_jax_devices(self):
        with self.open() as store:
            self.publish(store, "a", 7)
            program = (
                "import sys, jax, jax_cxl\n"
                "version, tree = jax_cxl.Store(sys.argv[1]).read('a')\n"
                "view = jax_cxl.Store(sys.argv[1]).view('a')\n"
                "assert (view.tree['w'] == tree['w']).all()\n"
                "from jax._src import xla_bridge\n"
                "assert not xla_bridge.backends_are_initialized()\n"
                "print(version, tree['w'].shape)\n"
            )
            done = subprocess.run(
                [sys.executable, "-c", program, self.where], capture_output=True, text=True
            )
            self.assertEqual(done.stdout, "7 (700, 1000)\n", done.stderr)

    def test_waits_for_a_newer_version(self):
        with self.open() as store, self.open() as reader:
            later = threading.Timer(0.2, lambda: self.publish(store, "a", 5))
            later.start()
            self.assertEqual(reader.wait("a", timeout=60), 5)
            later.join()
            later = threading.Timer(0.2, lambda: self.publish(store, "a", 6))
            later.start()
            version, tree = reader.read("a", _tree(0), newer_than=5, timeout=60)
            later.join()
            self.assertEqual(version, 6)
            self.assert_tree(tree, 6)
            begin = time.monotonic()
            with self.assertRaisesRegex(
                jax_cxl.StoreTimeoutError, "newer than 6 within 0.1 s: its newest version is 6"
            ):
                reader.read("a", newer_than=6, timeout=0.1)
            self.assertLess(time.monotonic() - begin, 10)
            with self.assertRaisesRegex(jax_cxl.StoreTimeoutError, "no living process"):
                reader.wait("b", timeout=0)

    def test_a_damaged_version_is_not_used(self):
        with self.open() as store:
            self.publish(store, "a", 1)
            self.publish(store, "a", 2)
            data = np.asarray(_tree(2)["w"]).tobytes()[1000:1100]
            content = self.path.read_bytes()
            at = content.index(data)
            with open(self.path, "r+b") as file:
                file.seek(at)
                file.write(bytes([data[0] ^ 1]))
            with self.assertLogs("jax_cxl", "WARNING") as logs:
                version, tree = store.read("a", _tree(0))
            self.assertIn("version 2 of 'a' is not used: block 0", logs.output[0])
            self.assertEqual(version, 1)
            self.assert_tree(tree, 1)
            for read in (store.read, store.view):
                with self.assertRaisesRegex(jax_cxl.StoreError, "damaged"):
                    read("a", version=2)

    def test_what_is_wrong_is_refused(self):
        with self.open() as store:
            with self.assertRaisesRegex(jax_cxl.StoreError, "has no 'a'"):
                store.read("a")
            for name in ("", "a\n", "x" * 129, "\u202e"):
                with self.assertRaisesRegex(ValueError, "printable"):
                    store.publish(name, {})
            with self.assertRaises(TypeError):
                store.publish(1, {})
            with self.assertRaisesRegex(ValueError, "keep=1"):
                store.publish("a", {}, keep=1)
            self.assertEmpty(store.list())
            self.publish(store, "a", 4)
            with self.assertRaisesRegex(ValueError, "greater than 4"):
                self.publish(store, "a", 4)
            with self.assertRaisesRegex(jax_cxl.StoreError, "keep=2, not 3"):
                self.publish(store, "a", 5, keep=3)
            with self.assertRaisesRegex(jax_cxl.StoreError, "no leaf"):
                store.read("a", {"other": np.zeros(3)})
            with self.assertRaisesRegex(ValueError, "together"):
                store.read("a", version=4, newer_than=3)
            with self.assertRaisesRegex(TypeError, "into=int"):
                store.read("a", into=3)
            self.assert_tree(store.read("a", _tree(0)).tree, 4)

    def test_a_place_of_snapshots_and_a_store(self):
        with self.open() as store:
            self.publish(store, "a", 1)
            with self.assertRaisesRegex(jax_cxl.StoreError, "other names"):
                jax_cxl.Snapshots(self.where)
        snapshots = jax_cxl.Snapshots(self.where.replace("/a?", "/b?"))
        snapshots.save(1, {"x": 1})
        snapshots.wait()
        with jax_cxl.Store(self.where.replace("/a?", "/b?")) as store:
            self.assertEqual(store.read("snapshots").tree, {"x": 1})
            with self.assertRaisesRegex(jax_cxl.PoolError, "is full"):
                store.publish("a", {"x": 1})


class ChangedTest(_StoreTest):
    """Blocks that have not changed are neither written nor read."""

    def setUp(self):
        super().setUp()
        rng = np.random.default_rng(0)
        # Whole blocks, so that each array has its own.
        self.arrays = {f"l{i}": rng.integers(0, 256, 2 * _MIB, np.uint8) for i in range(4)}

    def test_writes(self):
        with self.open() as store:
            for version in range(4):
                store.publish("a", self.arrays, version=version)
            store.flush("a")
            devices = store._devices
            devices.core = _Counts(devices.core)
            for version in range(4, 8):
                self.arrays["l1"] = self.arrays["l1"] + 1
                devices.core.blocks = 0
                store.publish("a", self.arrays, version=version)
                store.flush("a")
                # The two blocks of the layer, the table and the directory.
                self.assertEqual(devices.core.blocks, 4)
                for name, array in store.read("a").tree.items():
                    np.testing.assert_array_equal(array, self.arrays[name])

    @parameterized.parameters(2, 3)
    def test_parity_is_that_of_all_blocks(self, paths):
        files = [self.path.with_name(f"p{i}") for i in range(paths)]
        where = f"file:{','.join(map(str, files))}?size={48 * _MIB}"
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
                devices = store._devices
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
            kept = dict(first.tree)
            changed = dict(self.arrays)
            changed["l2"] = changed["l2"].copy()
            changed["l2"][_MIB + 5] ^= 1
            store.publish("a", changed)
            store.flush("a")
            devices = store._devices
            devices.core = _Counts(devices.core)
            second = store.read("a", like, into=first)
            self.assertLessEqual(devices.core.read_blocks, 1 + 2)
            for name, array in second.tree.items():
                np.testing.assert_array_equal(array, changed[name])
                self.assertIs(
                    array.base if array.base is not None else array,
                    kept[name].base if kept[name].base is not None else kept[name],
                )

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
            # Another structure has to be read as a whole.
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


class ViewTest(_StoreTest):
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
                np.testing.assert_array_equal(w, _tree(1)["w"])
                self.assertFalse(w.flags.writeable)
                self.assertEqual(w.ctypes.data % 64, 0)
                core = store._devices.core
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
                np.testing.assert_array_equal(w, _tree(1)["w"])

    def test_a_version_that_is_viewed_stays(self):
        with self.open() as store, self.open() as reader:
            self.publish(store, "a", 1)
            view = reader.view("a")
            array = view.tree["w"][3:]
            view.close()
            del view
            for version in range(2, 12):
                self.publish(store, "a", version)
                np.testing.assert_array_equal(array, _tree(1)["w"][3:])
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
                store.publish("a", _tree(4), version=4)
            for number, view in enumerate(views, 1):
                np.testing.assert_array_equal(view.tree["w"], _tree(number)["w"])
            views.pop(0).close()
            del view
            gc.collect()
            self.publish(store, "a", 5)
            self.assert_tree(reader.read("a", _tree(0)).tree, 5)

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
            with self.assertRaisesRegex(jax_cxl.StoreError, "was asked for"):
                store.view("a", {"r": np.zeros((8, 5), np.float32)})


class WritersTest(_StoreTest):
    def test_one_job_publishes_a_name(self):
        with self.open() as store:
            self.publish(store, "a", 1)
            program = (
                "import sys, jax_cxl\n"
                "store = jax_cxl.Store(sys.argv[1])\n"
                "store.publish('b', {'x': 2})\n"
                "store.flush('b')\n"
                "try: store.publish('a', {'x': 1})\n"
                "except jax_cxl.StoreError as error: print(error)\n"
                "try: store.delete('a')\n"
                "except jax_cxl.StoreError as error: print(error)\n"
            )
            run = [sys.executable, "-c", program, self.where]
            done = subprocess.run(run, capture_output=True, text=True)
            first, second = done.stdout.splitlines()
            self.assertRegex(first, f"process {os.getpid()} .* publishes 'a' of")
            self.assertRegex(second, f"cannot be deleted: process {os.getpid()}")
            self.assert_tree(store.read("a", _tree(0)).tree, 1)
            self.publish(store, "a", 2)
            # The other process has ended.
            store.publish("b", {"x": 3})
            store.flush("b")
            self.assertEqual(store.read("b").tree, {"x": 3})

    def test_a_store_that_was_closed_lets_others_publish(self):
        first = self.open()
        self.publish(first, "a", 1)
        first.close()
        with self.open() as second:
            self.publish(second, "a", 2)
            self.assertEqual(second.list()[0].versions, (2, 1))

    def test_full(self):
        with self.open() as store:
            large = {"x": np.zeros(14 * _MIB, np.uint8)}
            store.publish("a", large)
            with self.assertRaisesRegex(jax_cxl.PoolError, r"is full: 'b' needs \d+ bytes"):
                store.publish("b", large)
            with self.assertRaisesRegex(jax_cxl.PoolError, "delete the name, and publish it again"):
                store.publish("a", {"x": np.zeros(18 * _MIB, np.uint8)})
            store.flush("a")
            store.delete("a")
            self.assertEmpty(store.list())
            store.publish("b", large)
            store.flush("b")
            self.assertEqual(store.read("b").version, 0)
            with self.assertRaisesRegex(jax_cxl.StoreError, "has no 'a'"):
                store.read("a")

    def test_names_come_and_go(self):
        rng = np.random.default_rng(0)
        with jax_cxl.Store(self.where.replace(str(64 * _MIB), str(128 * _MIB))) as store:
            names = {}
            for i in range(60):
                name = f"n{rng.integers(6)}"
                if name in names:
                    self.assertEqual(store.read(name).tree["x"].tobytes(), names.pop(name))
                    store.delete(name)
                    continue
                x = rng.integers(0, 9, rng.integers(1, 2 * _MIB), np.uint8)
                store.publish(name, {"x": x})
                store.flush(name)
                names[name] = x.tobytes()
                self.assertEqual([of.name for of in store.list()], sorted(names), i)
            for name, content in names.items():
                self.assertEqual(store.read(name).tree["x"].tobytes(), content)

    def test_a_path_that_was_away_brings_no_name_back(self):
        files = [self.path.with_name(name) for name in "abc"]
        where = f"file:{','.join(map(str, files))}?size={16 * _MIB}"
        with jax_cxl.Store(where, parity=1) as store:
            store.publish("old", {"x": 1})
            store.flush("old")
        away = files[0].read_bytes()
        with jax_cxl.Store(where) as store:
            store.delete("old")
        files[0].write_bytes(away)
        devices = opening.open_devices(where, None)
        self.assertEqual(catalog.entries(devices), [])


if __name__ == "__main__":
    absltest.main()
