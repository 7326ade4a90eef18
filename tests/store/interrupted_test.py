"""Threads that use one store at the same time, and calls that do not come to their end."""

import concurrent.futures
import contextlib
import copy
import gc
import signal
import threading
import time
from unittest import mock

import numpy as np
import store_harness as harness
from absl.testing import absltest, parameterized
from interleaved import X, in_thread, once, publish

import jax_cxl
from jax_cxl._store.memory import catalog
from jax_cxl._store.writing import fence, publisher


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

    @parameterized.parameters("_begun", "take", "next_number")
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
            with catalog.locked(other._names.made()):
                locked.set()
                waits.wait(30)
                time.sleep(0.1)
                signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

        held = in_thread(hold)
        locked.wait(30)
        with self.assertRaises(KeyboardInterrupt), once(catalog, "locked", before=waits.set):
            catalog.create(own._names.made(), "a", 2, 1 << 23)
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


if __name__ == "__main__":
    absltest.main()
