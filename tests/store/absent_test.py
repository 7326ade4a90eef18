"""Calls that only read create nothing, and say that there is no store."""

import pathlib
import threading
import time

import numpy as np
import shared_folder
from absl.testing import absltest, parameterized

import jax_cxl

X = np.arange(8, dtype=np.float32)
_READS = {
    "read": lambda where: jax_cxl.Store(where).read("a"),
    "read like": lambda where: jax_cxl.Store(where).read("a", {"x": X}, version=3),
    "read newer": lambda where: jax_cxl.Store(where).read("a", newer_than=2, timeout=0.05),
    "wait": lambda where: jax_cxl.Store(where).wait("a", timeout=0.05),
    "view": lambda where: jax_cxl.Store(where).view("a"),
    "list": lambda where: jax_cxl.Store(where).list(),
    "delete": lambda where: jax_cxl.Store(where).delete("a"),
    "parity": lambda where: jax_cxl.Store(where.replace("?", "2?"), parity=0).read("a"),
    "open a table": lambda where: jax_cxl.Table.open(where, "a"),
    "wait for a table": lambda where: jax_cxl.Table.open(where, "a", timeout=0.05),
    "restore": lambda where: jax_cxl.Snapshots(where).restore(3, {"x": X}),
}


class AbsentTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(self.enter_context(shared_folder.folder()))
        self.where = f"file:{self.folder}/weihgts?size=32MiB"

    @parameterized.parameters(*_READS)
    def test_a_reader_creates_nothing(self, call):
        with self.assertRaisesRegex(jax_cxl.StoreError, "there is no store at .*weihgts.*URI"):
            _READS[call](self.where)
        self.assertEmpty(list(self.folder.iterdir()))

    @parameterized.parameters(*_READS)
    def test_a_name_without_a_size_is_a_name(self, call):
        absent = "there is no store at 'shm:of_no_test.*': /dev/shm/.* does not exist"
        with self.assertRaisesRegex(jax_cxl.StoreError, absent):
            _READS[call]("shm:of_no_test" if call != "parity" else "shm:of_no_test?size=1MiB")

    def test_snapshots_of_a_first_start(self):
        with jax_cxl.Snapshots(self.where) as snapshots:
            self.assertIsNone(snapshots.latest())
            self.assertIsNone(snapshots.restore_latest({"x": X}))
        self.assertEmpty(list(self.folder.iterdir()))
        with jax_cxl.Snapshots(self.where) as snapshots, jax_cxl.Snapshots(self.where) as other:
            self.assertIsNone(snapshots.latest())
            snapshots.save(3, {"x": X})
            snapshots.wait()
            self.assertEqual(other.latest(), 3)
            np.testing.assert_array_equal(other.restore(3, {"x": X})["x"], X)

    def test_a_store_of_another_size(self):
        with jax_cxl.Store(self.where) as store:
            store.publish("a", {"x": X})
        with self.assertRaisesRegex(jax_cxl.StoreError, "has 32 MiB .*or made with another size="):
            jax_cxl.Store(self.where.replace("32MiB", "64MiB")).publish("b", {"x": X})

    def test_a_store_without_snapshots(self):
        with jax_cxl.Store(self.where) as store:
            store.publish("a", {"x": X})
        with self.assertRaisesRegex(jax_cxl.StoreError, "a store with other names"):
            jax_cxl.Snapshots(self.where)

    def test_a_wait_also_waits_for_the_store(self):
        self.enter_context(absltest.mock.patch.dict("os.environ", JAX_CXL_WARN_AFTER="0.1"))

        def publish():
            time.sleep(0.3)
            with jax_cxl.Store(self.where) as store:
                store.publish("a", {"x": X}, version=7)

        later = threading.Thread(target=publish)
        later.start()
        with self.assertLogs("jax_cxl", "WARNING") as logs:
            self.assertEqual(jax_cxl.Store(self.where).wait("a", timeout=60), 7)
        later.join()
        self.assertLen(logs.output, 1)
        self.assertRegex(logs.output[0], "waiting, because there is no store at")


if __name__ == "__main__":
    absltest.main()
