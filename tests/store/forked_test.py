"""Children that were forked after their parent had opened a store."""

import contextlib
import gc
import os
import warnings

import numpy as np
import store_harness as harness
from absl.testing import absltest
from interleaved import X, publish

import jax_cxl


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
