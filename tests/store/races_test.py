"""Processes that change a store at the same time, in the orders of steps that are rare."""

import concurrent.futures
import contextlib
import copy
import gc
import os
import signal
import threading
import time
import warnings
from unittest import mock

import numpy as np
import store_harness as harness
from absl.testing import absltest, parameterized

import jax_cxl
from jax_cxl._store import following
from jax_cxl._store.memory import catalog, layout
from jax_cxl._store.reading import validity
from jax_cxl._store.writing import fence, publisher
from jax_cxl._table import creating
from jax_cxl._tier.residuals import rings

X = np.arange(300_000)


def publish(store, name, x):
    store.publish(name, {"x": x})
    store.flush(name)


@contextlib.contextmanager
def once(where, name, *, before=lambda: None, after=lambda: None):
    """Does something else before or after the next call of a function."""
    old = getattr(where, name)

    def call(*args, **kwargs):
        patched.stop()
        before()
        result = old(*args, **kwargs)
        after()
        return result

    patched = mock.patch.object(where, name, call)
    patched.start()
    try:
        yield
    finally:
        patched.stop()


def in_thread(act):
    """Begins to do something; returns a function that waits, and returns result or error."""
    done = []

    def run():
        try:
            done.append(act())
        except Exception as error:
            done.append(error)

    thread = threading.Thread(target=run)
    thread.start()

    def result():
        thread.join(60)
        return done[0]

    return result


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
        entry = catalog.find(killed._devices, "a")
        with catalog.locked(killed._devices):
            catalog._store_ending(killed._devices, entry, 1)
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
        # As if its heartbeat had stopped.
        with mock.patch.object(fence, "owner", lambda section: None):
            deleting.delete("a")
        publish(other, "b", X)
        for _ in range(2):
            with self.assertRaisesRegex(jax_cxl.StoreError, "was deleted"):
                stopped._publishers["a"].save(None, {"x": X + 1}, copy=True)
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
            creating._remove_incomplete(other._devices, "t")
            publish(other, "b", X)

        with (
            once(catalog, "create", after=remove),
            self.assertRaisesRegex(jax_cxl.StoreError, "is just being made"),
        ):
            jax_cxl.Table.create(making, "t", np.zeros((100_000, 2)))
        np.testing.assert_array_equal(other.read("b").tree["x"], X)
        self.assertEqual([of.name for of in other.list()], ["b"])
        other.close()

    def test_a_table_fits_where_another_process_has_begun_a_smaller_one(self):
        making, smaller, other = self.open(), self.open(), self.open()

        def make():
            size = layout.Geometry(0, 0, 1, 0, 0).bytes_for(2)
            catalog.create(smaller._devices, "t", 0, size)
            publish(other, "b", X)

        with (
            once(catalog, "create", before=make),
            self.assertRaisesRegex(jax_cxl.StoreError, "is just being made"),
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
            with once(validity, "all_valid", after=wait):
                remove = lambda: creating._remove_incomplete(other._devices, "t")  # noqa: E731
                removing.append(in_thread(remove))
                looked.wait(30)
            yield rows

        jax_cxl.Table.create(making, "t", blocks(), shape=rows.shape, dtype=rows.dtype).close()
        gc.collect()
        made.set()
        self.assertRegex(str(removing[0]()), "has just been made")
        np.testing.assert_array_equal(jax_cxl.Table.open(other, "t").view(), rows)

    def test_residuals_keep_their_memory(self):
        own, other = self.open(), self.open()
        leased = threading.Event()
        deleting = []

        def begin():
            def delete():
                with once(catalog, "holders", before=lambda: leased.wait(30)):
                    began.set()
                    rings._delete_abandoned(other._devices)

            began = threading.Event()
            deleting.append(in_thread(delete))
            began.wait(30)

        ring = rings.Ring(own._devices, 1 << 20, "residuals")
        with once(catalog, "create", after=begin):
            stays = catalog.stays

            def look(devices, entry):
                leased.set()
                return stays(devices, entry)

            with mock.patch.object(catalog, "stays", look):
                entry, _ = ring._section(1)
        self.assertIsNone(deleting[0]())
        self.assertEqual([of.name for of in other.list()], [entry.name])
        self.assertTrue(catalog.is_current(own._devices, entry))

    def test_names_of_residuals_are_not_names_of_data(self):
        with self.open() as store:
            with self.assertRaisesRegex(ValueError, "must not begin with 'residuals '"):
                store.publish("residuals of a model", {"x": X})
            with self.assertRaisesRegex(ValueError, "must not begin with 'residuals '"):
                jax_cxl.Table.create(store, "residuals of a table", X[:, None])
            self.assertEmpty(store.list())

    def test_a_view_that_failed_ends_no_other_lease(self):
        with self.open() as store, self.open() as reader:
            publish(store, "good", X)
            publish(store, "bad", X)
            entry = catalog.find(reader._devices, "bad")
            geometry = catalog.geometry_of(reader._devices, entry)
            for row in range(geometry.rows):
                noise = np.full(layout.BLOCK_BYTES, 7, np.uint8)
                reader._devices.write(0, geometry.row(1, row), noise)
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


class ThreadsTest(harness.StoreTest):
    def run_all(self, *acts):
        """Runs functions at the same time."""
        with concurrent.futures.ThreadPoolExecutor(len(acts)) as threads:
            for done in [threads.submit(act) for act in acts]:
                done.result()

    def test_threads_publish_one_name(self):
        made = {}
        stop = threading.Event()

        def publishing(first):
            def act():
                for value in range(first, first + 8):
                    version = store.publish("a", {"x": np.full_like(X, value)})
                    self.assertNotIn(version, made)
                    made[version] = value

            return act

        def read():
            while not stop.is_set():
                with contextlib.suppress(jax_cxl.StoreError):
                    x = store.read("a").tree["x"]
                    self.assertTrue(np.all(x == x[0]))

        def publish_all():
            self.run_all(*(publishing(first) for first in (0, 100, 200)))
            stop.set()

        with self.open() as store, self.assertNoLogs("jax_cxl", "WARNING"):
            self.run_all(publish_all, read, read)
            store.flush("a")
            version, tree = store.read("a")
            self.assertLen(made, 24)
            self.assertEqual(version, 23)
            np.testing.assert_array_equal(tree["x"], made[23])

    def test_a_thread_deletes_a_name_that_another_one_publishes(self):
        with self.open() as store:
            publish(store, "a", X)
            with (
                once(publisher.Publisher, "save", before=lambda: store.delete("a")),
                self.assertRaisesRegex(jax_cxl.StoreError, "was closed"),
            ):
                publish(store, "a", X + 1)
            publish(store, "a", X + 2)
            np.testing.assert_array_equal(store.read("a").tree["x"], X + 2)

    @parameterized.parameters("_begun", "_first", "take", "next_number")
    def test_an_interrupt_leaves_a_name_that_can_be_published(self, step):
        def interrupt():
            raise KeyboardInterrupt

        for moment in ("before", "after"):
            with self.open() as store:
                interrupted = once(fence, step, **{moment: interrupt})
                with interrupted, self.assertRaises(KeyboardInterrupt):
                    store.publish("a", {"x": X})
                publish(store, "a", X + 1)
                np.testing.assert_array_equal(store.read("a").tree["x"], X + 1)
                store.delete("a")

    @parameterized.parameters(1, 2)
    def test_a_store_that_was_closed_after_an_error_lets_others_publish(self, errors):
        with self.open() as store:
            publish(store, "a", X)
            for _ in range(errors):
                with self.assertRaises(TypeError):
                    store.publish("a", {"x": object()})
        with self.open() as other:
            publish(other, "a", X + 1)
            np.testing.assert_array_equal(other.read("a").tree["x"], X + 1)

    def test_an_interrupt_while_another_process_has_the_lock(self):
        own, other = self.open(), self.open()
        locked, waits = threading.Event(), threading.Event()

        def hold():
            with catalog.locked(other._devices):
                locked.set()
                waits.wait(30)
                time.sleep(0.1)
                signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

        held = in_thread(hold)
        locked.wait(30)
        with self.assertRaises(KeyboardInterrupt), once(catalog, "locked", before=waits.set):
            catalog.create(own._devices, "a", 2, 1 << 23)
        held()
        for store in (other, own):
            publish(store, "b", X)
            store.delete("b")

    def test_copies_of_views_that_cannot_be_made(self):
        with self.open() as store:
            publish(store, "a", X)
            view = store.view("a")
            with mock.patch("sys.unraisablehook") as unraisable, self.assertRaises(TypeError):
                copy.deepcopy(view)
            gc.collect()
            unraisable.assert_not_called()
            view.check()


class ForkedTest(harness.StoreTest):
    def child(self, act):
        """Returns whether a function returns True in a child process."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # JAX warns, because it has threads.
            pid = os.fork()
        if pid == 0:
            status = 1
            with contextlib.suppress(BaseException):
                status = 0 if act() else 2
                gc.collect()
            os._exit(status)
        _, status = os.waitpid(pid, 0)
        return os.waitstatus_to_exitcode(status) == 0

    def test_a_child_reads_and_takes_no_lease_of_its_parent(self):
        with self.open() as store, self.open() as reader:
            publish(store, "a", X)
            views = [reader.view("a")]

            def act():
                for _ in range(3):
                    if reader.read("a").tree["x"].tobytes() != X.tobytes():
                        return False
                with reader.view("a") as own:
                    own.check()
                views.pop()
                return not views

            self.assertTrue(self.child(act))
            for version in range(5):
                publish(store, "a", np.full_like(X, version))
            views[0].check()
            np.testing.assert_array_equal(views[0].tree["x"], X)

    def test_a_view_of_the_parent_is_not_the_childs(self):
        with self.open() as store:
            publish(store, "a", X)
            view = store.view("a")

            def act():
                with self.assertRaisesRegex(jax_cxl.StoreError, "was forked since"):
                    view.check()
                return True

            self.assertTrue(self.child(act))

    def test_a_child_publishes_nothing_in_the_place_of_its_parent(self):
        with self.open() as store:
            publish(store, "a", X)

            def act():
                for name in "ab":
                    with self.assertRaisesRegex(jax_cxl.StoreError, "this process was forked"):
                        store.publish(name, {"x": X})
                with self.assertRaisesRegex(jax_cxl.StoreError, "this process was forked"):
                    store.flush("a")
                store.close()
                return True

            store.publish("a", {"x": X})
            self.assertTrue(self.child(act))
            with self.open() as other, self.assertRaisesRegex(jax_cxl.StoreError, "publishes"):
                publish(other, "a", X + 1)
            publish(store, "a", X + 2)
            self.assertEqual([of.name for of in store.list()], ["a"])
            np.testing.assert_array_equal(store.read("a").tree["x"], X + 2)


if __name__ == "__main__":
    absltest.main()
