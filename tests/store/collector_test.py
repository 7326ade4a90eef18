"""Python's garbage collector is paused while trees are read and written, and runs afterwards."""

import gc
import threading

from absl.testing import absltest

from jax_cxl._store.trees import pytrees


class PausedTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        self.addCleanup(gc.enable)

    def test_it_runs_when_the_last_thread_has_ended(self):
        entered, leave = threading.Event(), threading.Event()

        @pytrees.collector_paused()
        def longer():
            entered.set()
            leave.wait(60)

        thread = threading.Thread(target=longer)
        with pytrees.collector_paused():
            thread.start()
            entered.wait(60)
        self.assertFalse(gc.isenabled())
        leave.set()
        thread.join()
        self.assertTrue(gc.isenabled())

    def test_after_an_error(self):
        with self.assertRaises(ValueError), pytrees.collector_paused():
            raise ValueError
        self.assertTrue(gc.isenabled())

    def test_a_collector_that_was_off_stays_off(self):
        gc.disable()
        with pytrees.collector_paused():
            pass
        self.assertFalse(gc.isenabled())


if __name__ == "__main__":
    absltest.main()
