"""A save may stop anywhere: the previous snapshot stays valid, and the next save works."""

import jax.numpy as jnp
import numpy as np
import places
import pytest
from absl.testing import absltest, parameterized


class _StoppedError(Exception):
    pass


class _StopsAfter:
    """A mapping that makes `writes` writes, and raises an error at the next one."""

    def __init__(self, core, writes):
        self._core = core
        self.left = writes

    def _count(self):
        if self.left == 0:
            raise _StoppedError
        self.left -= 1

    def write(self, *arguments):
        self._count()
        self._core.write(*arguments)

    def store_word(self, *arguments):
        self._count()
        self._core.store_word(*arguments)

    def __getattr__(self, name):
        return getattr(self._core, name)


def _tree(step):
    rng = np.random.default_rng(step)
    return {"large": jnp.asarray(rng.standard_normal(1_600_000, np.float32)), "step": step}


def _stop_save(snapshots, writes: int, step: int, wait: bool = True) -> int:
    """Starts a save that may make `writes` writes; returns how many of these it did not make."""
    own = snapshots._publisher.section.devices
    proxy = _StopsAfter(own.core, writes)
    object.__setattr__(own, "core", proxy)
    try:
        snapshots.save(step, _tree(step))
        if wait:
            snapshots.wait()
        else:
            snapshots._publisher._saving.exception()
    finally:
        object.__setattr__(own, "core", proxy._core)
    return proxy.left


class TornTest(parameterized.TestCase):
    @parameterized.product(paths_parity=((1, 0), (3, 0), (2, 1)), keep=(2, 3))
    @pytest.mark.sample(5)
    def test_stop_before_each_write(self, paths_parity, keep):
        paths, parity = paths_parity
        options = {"keep": keep, "parity": parity}
        trees = {step: _tree(step) for step in range(5)}
        with places.place(trees[0], paths=paths, **options) as place:
            # Count the writes of a save.
            snapshots = place.open(**options)
            snapshots.save(0, trees[0])
            snapshots.wait()
            writes = (1 << 20) - _stop_save(snapshots, 1 << 20, 1)
            self.assertGreaterEqual(writes, 7)
            for stop in range(writes):
                snapshots.save(2, trees[2])
                snapshots.save(3, trees[3])
                snapshots.wait()
                with self.assertRaises(_StoppedError):
                    _stop_save(snapshots, stop, 4)
                for again in (snapshots, place.open(**options)):
                    # A restore does not even try the unfinished snapshot, so it logs no warning.
                    with self.assertNoLogs("jax_cxl"):
                        found = again.restore_latest(trees[0])
                    # The word that completes a save is on the first device, and only a few writes
                    # may follow it. So the save is complete only if it stopped near its end.
                    complete = found[0] == 4
                    self.assertIn(found[0], (3, 4))
                    self.assertLessEqual(complete, stop > writes - 2 * paths, f"stop {stop}")
                    places.assert_same(self, trees[found[0]], found[1])
                # Saves continue, in the same job or in a new one.
                if stop % 2:
                    snapshots = place.open(**options)
                    snapshots.latest()
                snapshots.save(1, trees[1])
                snapshots.wait()
                places.assert_same(self, (1, trees[1]), snapshots.restore_latest(trees[0]))
                places.assert_same(self, trees[found[0]], snapshots.restore(*found))

    def test_wait_and_save_say_what_has_stopped_a_save(self):
        with places.place(_tree(0)) as place:
            snapshots = place.open()
            snapshots.save(0, _tree(0))
            snapshots.wait()
            for wait in (True, False):
                with self.assertRaises(_StoppedError):
                    # With its first ten writes, the job claims the memory and begins the save. So a
                    # limit of 12 writes stops it within the save.
                    _stop_save(snapshots, 12, 1, wait)
                    # Without a wait, the next save raises the error.
                    snapshots.save(2, _tree(2))
                with self.assertRaises(_StoppedError):
                    snapshots.wait()
                self.assertEqual(snapshots.latest(), 0)
            snapshots.save(2, _tree(2))
            snapshots.wait()
            self.assertEqual(snapshots.latest(), 2)

    def test_a_snapshot_that_was_restored_is_not_overwritten_first(self):
        trees = [_tree(step) for step in range(6)]
        for keep in (2, 3):
            with places.place(trees[0], keep=keep) as place:
                for older in range(keep):
                    snapshots = place.open(keep=keep)
                    snapshots.latest()
                    for step in range(keep):
                        snapshots.save(step, trees[step])
                    snapshots.wait()
                    snapshots = place.open(keep=keep)
                    snapshots.restore(older, trees[0])
                    with self.assertRaises(_StoppedError):
                        _stop_save(snapshots, 13, 5)
                    again = place.open(keep=keep)
                    places.assert_same(self, trees[older], again.restore(older, trees[0]))


if __name__ == "__main__":
    absltest.main()
