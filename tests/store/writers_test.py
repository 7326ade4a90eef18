"""Who may publish in a store, and how full it may be."""

import os
import subprocess
import sys
from unittest import mock

import numpy as np
import store_harness as harness
from absl.testing import absltest, parameterized

import jax_cxl
from jax_cxl._store.memory import catalog, layout, opening


class WritersTest(harness.StoreTest):
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
            self.assert_tree(store.read("a", harness.tree(0)).tree, 1)
            self.publish(store, "a", 2)
            # The process that published "b" has ended, so this process may publish it.
            store.publish("b", {"x": 3})
            store.flush("b")
            self.assertEqual(store.read("b").tree, {"x": 3})

    def test_versions_that_do_not_grow(self):
        with self.open() as store:
            store.publish("a", {"x": 1}, version=5)
            for version, kind, message in (
                (5, ValueError, "version=5 must be greater than 5, .* Omit it"),
                (-1, ValueError, "version=-1 must be at least 0"),
                ("6", TypeError, "version='6' must be an int, not str"),
            ):
                with self.assertRaisesRegex(kind, message):
                    store.publish("a", {"x": 2}, version=version)
            self.assertEqual(store.publish("a", {"x": 2}), 6)

    def test_a_store_that_was_closed_lets_others_publish(self):
        first = self.open()
        self.publish(first, "a", 1)
        first.close()
        with self.open() as second:
            self.publish(second, "a", 2)
            self.assertEqual(second.list()[0].versions, (2, 1))

    def test_arrays_are_copied_unless_the_caller_says_otherwise(self):
        with self.open() as store:
            store.publish("a", {})
            with mock.patch.object(store._names.known("a"), "save") as save:
                store.publish("a", {})
                store.publish("a", {}, copy=False)
            copies = [call.kwargs["copy"] for call in save.call_args_list]
            self.assertEqual(copies, [True, False])

    def test_full(self):
        with self.open() as store:
            large = {"x": np.zeros(14 * harness.MIB, np.uint8)}
            store.publish("a", large)
            with self.assertRaisesRegex(jax_cxl.PoolError, r"is full: 'b' needs \d+ bytes"):
                store.publish("b", large)
            with self.assertRaisesRegex(jax_cxl.PoolError, "delete the name, and publish it again"):
                store.publish("a", {"x": np.zeros(18 * harness.MIB, np.uint8)})
            store.flush("a")
            store.delete("a")
            self.assertEmpty(store.list())
            store.publish("b", large)
            store.flush("b")
            self.assertEqual(store.read("b").version, 0)
            with self.assertRaisesRegex(jax_cxl.StoreError, "has no 'a'"):
                store.read("a")

    @parameterized.parameters((1, 1), (layout.PAGE_BYTES, 1), (layout.PAGE_BYTES + 1, 2))
    def test_names_take_whole_pages(self, extra, pages):
        with self.open() as store:
            needed = layout.Geometry(2, 0, 1, 0, 0).bytes_for(2)
            self.assertEqual(needed % layout.PAGE_BYTES, 0)
            entry = catalog.create(store._names.made(), "a", 2, needed + extra)
            self.assertEqual(entry.end - entry.start, needed + pages * layout.PAGE_BYTES)

    def test_names_come_and_go(self):
        rng = np.random.default_rng(0)
        with jax_cxl.Store(
            self.where.replace(str(64 * harness.MIB), str(128 * harness.MIB))
        ) as store:
            names = {}
            for i in range(60):
                name = f"n{rng.integers(6)}"
                if name in names:
                    self.assertEqual(store.read(name).tree["x"].tobytes(), names.pop(name))
                    store.delete(name)
                    continue
                x = rng.integers(0, 9, rng.integers(1, 2 * harness.MIB), np.uint8)
                store.publish(name, {"x": x})
                store.flush(name)
                names[name] = x.tobytes()
                self.assertEqual([of.name for of in store.list()], sorted(names), i)
            for name, content in names.items():
                self.assertEqual(store.read(name).tree["x"].tobytes(), content)

    def test_a_path_that_was_away_brings_no_name_back(self):
        files = [self.path.with_name(name) for name in "abc"]
        where = f"file:{','.join(map(str, files))}?size={16 * harness.MIB}"
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
