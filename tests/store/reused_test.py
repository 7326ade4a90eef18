"""Reads into the arrays of an earlier result: what is known about their bytes, and who has them."""

import copy
import itertools
import pickle
import threading
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import store_harness as harness
from absl.testing import absltest, parameterized

import jax_cxl
from jax_cxl._store.memory import checksum

_SIZE = harness.MIB // 2  # Each array fills two blocks. XLA can use the memory of such arrays.
_DAMAGED = 9.0


def _tree(a, b, c, make=np.full):
    return {k: make(_SIZE, v, np.float32) for k, v in zip("abc", (a, b, c), strict=True)}


def _publish(store, *values):
    store.publish("p", _tree(*values))
    store.flush("p")


class ReusedTest(harness.StoreTest):
    def assert_values(self, found, *values):
        for k, v in _tree(*values).items():
            np.testing.assert_array_equal(found.tree[k], v)

    def damage(self):
        """Damages the block whose elements are all `_DAMAGED`."""
        content = self.path.read_bytes()
        at = content.find(np.full(256, _DAMAGED, np.float32).tobytes())
        with self.path.open("r+b") as file:
            file.seek(at + 100)
            file.write(b"\xff" * 8)

    def then_damaged(self, like):
        """Reads a version; then come a version that is whole, and one that is damaged."""
        with self.open() as store:
            _publish(store, 1, 1, 1)
            last = store.read("p", like)
            _publish(store, 1, 1, 5)
            _publish(store, 7, 1, _DAMAGED)
        self.damage()
        return last

    likes = parameterized.parameters(
        [None], [_tree(0, 0, 0)], [jax.eval_shape(lambda: _tree(0, 0, 0, jnp.full))]
    )

    @likes
    def test_the_newest_version_is_damaged(self, like):
        last = self.then_damaged(like)
        with self.open() as store, self.assertLogs("jax_cxl", "WARNING"):
            found = store.read("p", like, into=last)
        self.assertEqual(found.version, 1)
        self.assert_values(found, 1, 1, 5)

    @likes
    def test_after_an_error(self, like):
        last = self.then_damaged(like)
        with self.open() as store:
            with self.assertRaisesRegex(jax_cxl.StoreError, "is damaged"):
                store.read("p", like, version=2, into=last)
            found = store.read("p", like, version=1, into=last)
        self.assert_values(found, 1, 1, 5)

    @likes
    def test_after_an_interrupt(self, like):
        store = self.open()
        _publish(store, 1, 1, 1)
        last = store.read("p", like)
        _publish(store, 5, 5, 5)
        of, blocks = checksum.of, itertools.count()

        def interrupted(data):
            # The table and the directory are smaller. The second block is not read to its end.
            if getattr(data, "nbytes", 0) == harness.MIB and next(blocks):
                raise KeyboardInterrupt
            return of(data)

        with mock.patch.object(checksum, "of", interrupted), self.assertRaises(KeyboardInterrupt):
            store.read("p", like, into=last)
        _publish(store, 1, 1, 1)
        self.assert_values(store.read("p", like, into=last), 1, 1, 1)

    @likes
    def test_used_up(self, like):
        store = self.open()
        _publish(store, 1, 1, 1)
        first = store.read("p", like)
        _publish(store, 2, 1, 1)
        second = store.read("p", like, into=first)
        _publish(store, 1, 1, 1)
        with self.assertRaisesRegex(ValueError, "pass that result"):
            store.read("p", like, into=first)
        self.assert_values(store.read("p", like, into=second), 1, 1, 1)

    def test_a_read_that_does_not_begin_leaves_the_arrays(self):
        store = self.open()
        _publish(store, 1, 1, 1)
        last = store.read("p")
        places = {k: x.ctypes.data for k, x in last.tree.items()}
        with self.assertRaises(jax_cxl.StoreTimeoutError):
            store.read("p", newer_than=0, timeout=0.01, into=last)
        with self.assertRaisesRegex(jax_cxl.StoreError, "no version 7"):
            store.read("p", version=7, into=last)
        _publish(store, 2, 1, 1)
        found = store.read("p", into=last)
        self.assert_values(found, 2, 1, 1)
        self.assertEqual({k: x.ctypes.data for k, x in found.tree.items()}, places)

    def test_two_threads(self):
        store = self.open()
        _publish(store, 1, 1, 1)
        last = store.read("p")
        waiting = threading.Event()
        errors = []

        def read():
            waiting.wait()
            try:
                store.read("p", into=last)
            except ValueError as error:
                errors.append(error)

        thread = threading.Thread(target=read)
        thread.start()
        _publish(store, 2, 1, 1)
        of = checksum.of

        def during(data):
            if not waiting.is_set():
                waiting.set()
                thread.join()
            return of(data)

        with mock.patch.object(checksum, "of", during):
            found = store.read("p", into=last)
        self.assert_values(found, 2, 1, 1)
        self.assertLen(errors, 1)


class SharedTest(harness.StoreTest):
    """Arrays that something else refers to are not overwritten."""

    def setUp(self):
        super().setUp()
        self.store = self.open()
        _publish(self.store, 1, 1, 1)

    @parameterized.parameters(
        jax.device_put,
        jax.dlpack.from_dlpack,
        lambda x: jax.device_put(x[16:]),
        lambda x: jax.device_put(x.reshape(16, -1)[3]),
        lambda x: jax.device_put({"x": x.view(np.int32)}),
    )
    def test_arrays_of_jax_stay(self, to_jax):
        for like in (None, _tree(0, 0, 0)):
            last = self.store.read("p", like)
            made = to_jax(last.tree["a"])
            before = jax.tree.map(np.array, made)
            value = float(last.tree["a"][0])
            for change in (1, 2):
                _publish(self.store, value + change, 1, 1)
                last = self.store.read("p", like, into=last)
                np.testing.assert_array_equal(last.tree["a"], np.float32(value + change))
                jax.tree.map(np.testing.assert_array_equal, made, before)

    def test_an_array_that_the_program_took_out_of_the_tree(self):
        last = self.store.read("p")
        taken = last.tree.pop("a")
        last.tree["b"] = last.tree["b"] + 7
        _publish(self.store, 2, 1, 1)
        last = self.store.read("p", into=last)
        for k, v in _tree(2, 1, 1).items():
            np.testing.assert_array_equal(last.tree[k], v)
        np.testing.assert_array_equal(taken, np.float32(1))

    def test_a_leaf_of_jax_that_the_program_replaced(self):
        like = _tree(0, 0, 0, jnp.full)
        last = self.store.read("p", like)
        last.tree["a"] += 7
        np.testing.assert_array_equal(
            self.store.read("p", like, into=last).tree["a"], np.float32(1)
        )

    def test_arrays_of_numpy_do_not_become_arrays_of_jax(self):
        last = self.store.read("p", _tree(0, 0, 0))
        kept = last.tree["a"]
        made = self.store.read("p", _tree(0, 0, 0, jnp.full), into=last)
        kept[:] = 3
        np.testing.assert_array_equal(made.tree["a"], np.float32(1))

    def test_the_tree_itself_as_like(self):
        last = self.store.read("p")
        place = last.tree["a"].ctypes.data
        for value in (2, 3):
            _publish(self.store, value, 1, 1)
            last = self.store.read("p", last.tree, into=last)
            np.testing.assert_array_equal(last.tree["a"], np.float32(value))
            self.assertEqual(last.tree["a"].ctypes.data, place)

    @parameterized.parameters(copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x)))
    def test_nothing_is_known_about_a_copy(self, copied):
        last = copied(self.store.read("p"))
        last.tree["a"][:] = 7
        found = self.store.read("p", into=last)
        np.testing.assert_array_equal(found.tree["a"], np.float32(1))


if __name__ == "__main__":
    absltest.main()
