"""Processes that change a store at the same time, with their steps in rare orders."""

import gc
import os
import threading
from unittest import mock

import numpy as np
import store_harness as harness
from absl.testing import absltest, parameterized
from interleaved import X, in_thread, once, publish

import jax_cxl
from jax_cxl._store import following
from jax_cxl._store.memory import catalog, layout
from jax_cxl._store.memory.section import Section
from jax_cxl._store.writing import fence
from jax_cxl._table import sections
from jax_cxl._tier.residuals import rings


class RacesTest(harness.StoreTest):
    def test_a_deletion_that_is_refused_hides_the_name_from_nobody(self):
        with self.open() as store:
            publish(store, "a", X)
        view, reader, deleting = self.open().view("a"), self.open(), self.open()
        reads = []

        def look():
            self.assertEqual([of.name for of in reader.list()], ["a"])
            reads.append(in_thread(lambda: reader.read("a").tree["x"].tobytes()))
            reads.append(in_thread(lambda: reader.wait("a", timeout=9)))

        with (
            once(catalog, "holders", before=look),
            self.assertRaisesRegex(jax_cxl.StoreError, "reads it"),
        ):
            deleting.delete("a")
        self.assertEqual([read() for read in reads], [X.tobytes(), 0])
        del view

    def test_a_read_goes_on_after_a_deletion_that_was_refused(self):
        with self.open() as store:
            publish(store, "a", X)
        view, reader, deleting = self.open().view("a"), self.open(), self.open()

        def delete():
            with self.assertRaisesRegex(jax_cxl.StoreError, "reads it"):
                deleting.delete("a")

        with once(following, "leased", before=delete):
            self.assertEqual(reader.read("a").tree["x"].tobytes(), X.tobytes())
        del view

    def test_a_process_that_is_killed_while_it_deletes_leaves_the_name(self):
        with self.open() as store:
            publish(store, "a", X)
        reader, killed = self.open(), self.open()
        entry = catalog.find(killed._names.devices(), "a")
        with catalog.locked(killed._names.devices()):
            catalog._store_ending(killed._names.devices(), entry, 1)
        with reader.view("a") as view:
            np.testing.assert_array_equal(view.tree["x"], X)
            with self.assertRaisesRegex(jax_cxl.StoreError, "reads it"):
                self.open().delete("a")
        with self.open() as again:
            publish(again, "a", X + 1)
        del view
        self.open().delete("a")
        self.assertEmpty(reader.list())

    def test_a_deletion_sees_a_job_that_has_just_begun_to_publish(self):
        with self.open() as store:
            publish(store, "a", X)
        publishing, deleting = self.open(), self.open()
        with (
            once(catalog, "delete", before=lambda: publish(publishing, "a", X + 1)),
            self.assertRaisesRegex(jax_cxl.StoreError, f"process {os.getpid()} .* publishes it"),
        ):
            deleting.delete("a")
        publish(publishing, "a", X + 2)
        np.testing.assert_array_equal(deleting.read("a").tree["x"], X + 2)
        publishing.close()

    @parameterized.parameters("newest", "owner", "take", "_free_slot")
    def test_a_job_does_not_publish_a_name_that_has_just_been_deleted(self, step):
        with self.open() as store:
            publish(store, "a", X)
        publishing, deleting, other = self.open(), self.open(), self.open()

        def delete():
            deleting.delete("a")
            publish(other, "b", X)

        with (
            once(fence, step, before=delete),
            self.assertRaisesRegex(jax_cxl.StoreError, "'a' of .* was deleted"),
        ):
            publish(publishing, "a", X + 1)
        np.testing.assert_array_equal(deleting.read("b").tree["x"], X)
        publish(publishing, "a", X + 2)
        publish(other, "b", X + 3)
        np.testing.assert_array_equal(deleting.read("a").tree["x"], X + 2)
        publishing.close()
        other.close()

    @parameterized.parameters(1, 2)
    def test_a_job_that_stood_still_does_not_write_to_a_name_that_was_deleted(self, jobs):
        for _ in range(jobs):  # so that its claim is not the first one
            stopped = self.open()
            publish(stopped, "a", X)
            stopped.close()
        publish(stopped, "a", X)
        deleting, other = self.open(), self.open()
        # This makes the store believe that the publisher's heartbeat has stopped.
        with mock.patch.object(fence, "owner", lambda section: None):
            deleting.delete("a")
        publish(other, "b", X)
        for _ in range(2):
            with self.assertRaisesRegex(jax_cxl.StoreError, "was deleted"):
                stopped._names.known("a").save(None, {"x": X + 1}, copy=True)
        np.testing.assert_array_equal(deleting.read("b").tree["x"], X)
        publish(other, "b", X + 2)
        np.testing.assert_array_equal(deleting.read("b").tree["x"], X + 2)
        stopped.close()
        other.close()

    def test_the_slower_of_two_jobs_publishes_a_name_when_the_other_has_ended(self):
        faster, slower = self.open(), self.open()
        with (
            once(fence, "take", before=lambda: publish(faster, "a", X)),
            self.assertRaisesRegex(jax_cxl.StoreError, "another job has begun"),
        ):
            publish(slower, "a", X + 1)
        with self.assertRaisesRegex(jax_cxl.StoreError, f"process {os.getpid()} .* publishes"):
            publish(slower, "a", X + 2)
        faster.close()
        publish(slower, "a", X + 3)
        self.assertEqual(slower.list()[0].versions[:2], (1, 0))
        np.testing.assert_array_equal(slower.read("a").tree["x"], X + 3)
        slower.close()

    def test_a_table_that_another_process_took_for_abandoned(self):
        making, other = self.open(), self.open()

        def remove():
            sections._remove_incomplete(other._names.devices(), "t")
            publish(other, "b", X)

        with (
            once(catalog, "create", after=remove),
            self.assertRaisesRegex(jax_cxl.StoreError, "is being created"),
        ):
            jax_cxl.Table.create(making, "t", np.zeros((100_000, 2)))
        np.testing.assert_array_equal(other.read("b").tree["x"], X)
        self.assertEqual([of.name for of in other.list()], ["b"])
        other.close()

    def test_a_table_fits_where_another_process_has_begun_a_smaller_one(self):
        making, smaller, other = self.open(), self.open(), self.open()

        def make():
            size = layout.Geometry(0, 0, 1, 0, 0).bytes_for(2)
            catalog.create(smaller._names.devices(), "t", 0, size)
            publish(other, "b", X)

        with (
            once(catalog, "create", before=make),
            self.assertRaisesRegex(jax_cxl.StoreError, "is being created"),
        ):
            jax_cxl.Table.create(making, "t", np.zeros((1_000_000, 2)))
        np.testing.assert_array_equal(other.read("b").tree["x"], X)
        other.close()

    def test_a_table_that_is_complete_is_not_taken_for_abandoned(self):
        making, other = self.open(), self.open()
        rows = np.arange(10.0)[:, None]
        looked, made = threading.Event(), threading.Event()
        removing = []

        def wait():
            looked.set()
            made.wait(30)

        def blocks():
            with once(Section, "all_valid", after=wait):
                remove = lambda: sections._remove_incomplete(other._names.devices(), "t")  # noqa: E731
                removing.append(in_thread(remove))
                looked.wait(30)
            yield rows

        jax_cxl.Table.create(making, "t", blocks(), shape=rows.shape, dtype=rows.dtype).close()
        gc.collect()
        made.set()
        self.assertRegex(str(removing[0]()), "has just been created")
        np.testing.assert_array_equal(jax_cxl.Table.open(other, "t").view(), rows)

    def test_residuals_keep_their_memory(self):
        own, other = self.open(), self.open()
        leased = threading.Event()
        deleting = []

        def begin():
            def delete():
                with once(catalog, "holders", before=lambda: leased.wait(30)):
                    began.set()
                    rings._delete_abandoned(other._names.devices())

            began = threading.Event()
            deleting.append(in_thread(delete))
            began.wait(30)

        ring = rings.Ring(own._names.made(), 1 << 20, "residuals")
        with once(catalog, "create", after=begin):
            stays = catalog.stays

            def look(devices, entry):
                leased.set()
                return stays(devices, entry)

            with mock.patch.object(catalog, "stays", look):
                entry, _ = ring._section(1)
        self.assertIsNone(deleting[0]())
        self.assertEqual([of.name for of in other.list()], [entry.name])
        self.assertTrue(catalog.is_current(own._names.devices(), entry))

    def test_names_of_residuals_are_not_names_of_data(self):
        with self.open() as store:
            with self.assertRaisesRegex(ValueError, "must not begin with 'residuals '"):
                store.publish("residuals of a model", {"x": X})
            with self.assertRaisesRegex(ValueError, "must not begin with 'residuals '"):
                jax_cxl.Table.create(store, "residuals of a table", X[:, None])
            with self.assertRaisesRegex(jax_cxl.StoreError, "there is no store at"):
                store.list()

    def test_a_view_that_failed_ends_no_other_lease(self):
        with self.open() as store, self.open() as reader:
            publish(store, "good", X)
            publish(store, "bad", X)
            entry = catalog.find(reader._names.devices(), "bad")
            geometry = catalog.geometry_of(reader._names.devices(), entry)
            for row in range(geometry.rows):
                noise = np.full(layout.BLOCK_BYTES, 7, np.uint8)
                reader._names.devices().write(0, geometry.row(1, row), noise)
            try:
                reader.view("bad")
            except jax_cxl.StoreError as error:
                failure = error  # keeps what was made of the view
            view = reader.view("good")
            del failure
            gc.collect()
            for version in range(5):
                publish(store, "good", np.full_like(X, version))
            view.check()
            np.testing.assert_array_equal(view.tree["x"], X)


if __name__ == "__main__":
    absltest.main()
