"""A store in one process: each published version is read, in every way."""

import contextlib
import dataclasses
import gc
import pathlib
import subprocess
import sys
import threading
import time
from unittest import mock

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import store_harness as harness
from absl.testing import absltest

import jax_cxl
from jax_cxl._store.memory import catalog, layout
from jax_cxl._store.memory.section import Section


class ReadTest(harness.StoreTest):
    def test_versions_of_several_names(self):
        with self.open() as store, self.open() as reader:
            for version in range(5):
                for name in ("policy", "critic/α"):
                    self.publish(store, name, version + len(name))
            for name in ("policy", "critic/α"):
                newest = 4 + len(name)
                version, tree = reader.read(name, harness.tree(0))
                self.assertEqual(version, newest)
                self.assert_tree(tree, newest)
                self.assert_tree(
                    reader.read(name, harness.tree(0), version=newest - 1).tree, newest - 1
                )
                with self.assertRaisesRegex(jax_cxl.StoreError, "no version 0, only"):
                    reader.read(name, version=0)
            listed = reader.list()
            self.assertEqual([of.name for of in listed], ["critic/α", "policy"])
            self.assertEqual(listed[1].versions[:2], (10, 9))
            self.assertEqual(store.publish("policy", harness.tree(0)), 11, "the next number")

    def test_a_failed_read_does_not_keep_the_memory(self):
        with self.open() as store:
            self.publish(store, "a", 3)
        del store
        calls = (
            {"name": "b"},
            {"name": "a", "version": 9},
            {"name": "a", "newer_than": 3, "timeout": 0},
            {"name": "a", "like": {"other": np.zeros(3)}},
            {"name": "a"},
        )
        gc.collect()
        gc.disable()  # An error whose frames refer to it would live until a collection.
        self.addCleanup(gc.enable)
        for arguments in calls:
            if arguments == calls[-1]:
                found, ((records, *_), *_) = Section.find_versions(
                    self.open()._names.devices(), "a"
                )
                found.devices.write(0, found.geometry.row(records.number, 0), b"damaged")
                del found
            # Not assertRaises: it clears the frames.
            with contextlib.suppress(jax_cxl.CxlError):
                self.open().read(**arguments)
                self.fail(f"{arguments} has no error")
            mapped = str(self.path) in pathlib.Path("/proc/self/maps").read_text()
            self.assertFalse(mapped, arguments)

    def test_a_version_prints_its_number_and_tree(self):
        with self.open() as store:
            store.publish("a", {"x": 7})
            store.flush("a")
            self.assertEqual(repr(store.read("a")), "Version(version=0, tree={'x': 7})")

    def test_a_version_that_is_completed_while_a_reader_looks(self):
        with self.open() as store:
            self.publish(store, "a", 3)
            record, looked = Section.record, []

            def late(section, number, writer):
                areas = section.geometry.areas
                looked.append(number)
                return record(section, number, writer) if len(looked) > areas else None

            with mock.patch.object(Section, "record", late):
                self.assertEqual(store.view("a").version, 3)
            with (
                mock.patch.object(Section, "record", return_value=None),
                self.assertRaisesRegex(jax_cxl.StoreError, "has no version yet"),
            ):
                store.view("a")

    def test_without_like_all_leaves_are_arrays_of_numpy(self):
        with self.open() as store:
            self.publish(store, "a", 3)
            version, tree = store.read("a")
            expected = harness.tree(3)
            self.assertEqual(version, 3)
            self.assertSameElements(tree, ["w", "layers/0/b", "count", "key", "host", "step"])
            self.assertEqual(tree["layers/0/b"].dtype, ml_dtypes.bfloat16)
            np.testing.assert_array_equal(tree["w"], expected["w"])
            np.testing.assert_array_equal(tree["key"], jax.random.key_data(expected["key"]))
            self.assertEqual(tree["step"], 3)

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

    def test_any_version_is_newer_than_none(self):
        with self.open() as store:
            self.publish(store, "b", 0)
            with self.assertRaisesRegex(jax_cxl.StoreError, "no version newer than -1 within"):
                store.wait("a", timeout=0.01)
            self.publish(store, "a", 0)
            self.assertEqual(store.wait("a", timeout=0.01), 0)

    def test_waits_for_a_newer_version(self):
        with self.open() as store, self.open() as reader:
            later = threading.Timer(0.2, lambda: self.publish(store, "a", 5))
            later.start()
            self.assertEqual(reader.wait("a", timeout=60), 5)
            later.join()
            later = threading.Timer(0.2, lambda: self.publish(store, "a", 6))
            later.start()
            version, tree = reader.read("a", harness.tree(0), newer_than=5, timeout=60)
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
            data = np.asarray(harness.tree(2)["w"]).tobytes()[1000:1100]
            content = self.path.read_bytes()
            at = content.index(data)
            with open(self.path, "r+b") as file:
                file.seek(at)
                file.write(bytes([data[0] ^ 1]))
            with self.assertLogs("jax_cxl", "WARNING") as logs:
                version, tree = store.read("a", harness.tree(0))
            self.assertIn("version 2 of 'a' is not used: block 0", logs.output[0])
            self.assertEqual(version, 1)
            self.assert_tree(tree, 1)
            for read in (store.read, store.view):
                with self.assertRaisesRegex(jax_cxl.StoreError, "damaged"):
                    read("a", version=2)

    def test_entries_of_the_catalog_that_cannot_be(self):
        with self.open() as store:
            self.publish(store, "a", 3)
            devices = store._names.devices()
            entry = catalog.find(devices, "a")
            end = devices.core.device_bytes + 1
            wrong = {5: dataclasses.replace(entry, name="beyond the memory", slot=5, end=end)}
            wrong[6] = dataclasses.replace(entry, name="of another slot")
            for slot, other in wrong.items():
                offset = layout.CATALOG_OFFSET + slot * layout.ENTRY_BYTES
                devices.write_entry(0, offset, other.to_bytes())
            self.assertEqual([of.name for of in store.list()], ["a"])

    def test_what_is_wrong_is_refused(self):
        with self.open() as store:
            store._names.made()
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
            self.assert_tree(store.read("a", harness.tree(0)).tree, 4)

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


if __name__ == "__main__":
    absltest.main()
