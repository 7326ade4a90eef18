"""A job that was stopped and wakes up does not damage the snapshots of the job that went on."""

import os
from unittest import mock

import jax.numpy as jnp
import numpy as np
import places
import pytest
from absl.testing import absltest, parameterized

import jax_cxl
from jax_cxl._store.memory import layout
from jax_cxl._store.writing import fence


def _tree(step: int):
    rng = np.random.default_rng(step)
    return {"large": jnp.asarray(rng.standard_normal(280_000, np.float32)), "step": step}


class _StopsInside:
    """A mapping that calls `meanwhile` in write number `stop`.

    If that write is of data, the call comes in its middle. If it is of a word, the call comes
    before it.
    """

    def __init__(self, core, stop, meanwhile):
        self._core = core
        self.writes = 0
        self._stop = stop
        self._meanwhile = meanwhile

    def _stops(self):
        self.writes += 1
        return self.writes == self._stop + 1

    def write(self, device, offset, data):
        half = len(data) // 2 if self._stops() else 0
        if half:
            self._core.write(device, offset, data[:half])
            self._meanwhile()
        self._core.write(device, offset + half, data[half:])

    def store_word(self, *arguments):
        if self._stops():
            self._meanwhile()
        self._core.store_word(*arguments)

    def __getattr__(self, name):
        return getattr(self._core, name)


def _stopped(snapshots, stop: int, meanwhile) -> _StopsInside:
    """Lets a job stop in write number `stop`, and go on when `meanwhile` has returned."""
    devices = snapshots._look(make=True).section.devices
    devices.core = _StopsInside(devices.core, stop, meanwhile)
    return devices.core


def _save(snapshots, *steps):
    for step in steps:
        snapshots.save(step, _tree(step))
    snapshots.wait()


def _restore(snapshots):
    found = snapshots.restore_latest(_tree(0))
    return found and (found[0], found[1]["step"], np.asarray(found[1]["large"]).tobytes())


def _expected(step):
    tree = _tree(step)
    return step, tree["step"], np.asarray(tree["large"]).tobytes()


class FenceTest(parameterized.TestCase):
    def assertNewest(self, place, step, **options):
        with self.assertNoLogs("jax_cxl"):
            self.assertEqual(_restore(place.open(**options)), _expected(step))

    @parameterized.parameters((1, 0, 1, False), (1, 0, 2, False), (1, 0, 1, True), (3, 1, 2, False))
    @pytest.mark.sample(3)
    def test_stop_in_each_write(self, paths, parity, saves, first_save):
        """While a job is stopped in a write of any of its saves, the next job saves a few times."""
        self._stop_in_each_write(paths, parity, saves, first_save)

    def _stop_in_each_write(self, paths, parity, saves, first_save):
        options = {"parity": parity}
        with places.place(_tree(0), paths=paths, **options) as place:
            if not first_save:
                _save(place.open(**options), 0, 1)
            before = [path.read_bytes() for path in place.paths] if not first_save else None
            counted = place.open(**options)
            core = _stopped(counted, -1, None)
            _save(counted, 2)
            del counted
            for stop in range(0, core.writes, paths):
                with self.subTest(stop=stop):
                    for i, path in enumerate(place.paths):
                        path.write_bytes(before[i] if before else b"")
                    self._stop_and_go_on(place, stop, saves, options)

    def test_stop_in_each_write_if_both_jobs_take_the_same_slots(self):
        def first_free(claims, token):
            del token
            return min(set(range(layout.NUM_CLAIMS)) - {claim.slot for claim in claims})

        with mock.patch.object(fence, "_free_slot", first_free):
            self._stop_in_each_write(1, 0, 1, False)

    def _stop_and_go_on(self, place, stop, saves, options):
        old, new = place.open(**options), place.open(**options)
        steps = range(10, 10 + saves)

        def go_on():
            new.latest()
            _save(new, *steps)
            self.assertNewest(place, steps[-1], **options)

        old.latest()
        core = _stopped(old, stop, go_on)
        # Usually the first save fails. If that save lacked only its last word when the job stopped,
        # it succeeds, and the second save fails.
        with self.assertRaisesRegex(jax_cxl.StoreError, "another job"):
            _save(old, 2)
            _save(old, 3)
        self.assertGreater(core.writes, stop)
        self.assertNewest(place, steps[-1], **options)
        _save(new, 20, 21, 22)
        self.assertNewest(place, 22, **options)
        with self.assertRaisesRegex(jax_cxl.StoreError, "another job"):
            _save(old, 4)

    def test_stop_between_saves(self):
        with places.place(_tree(0)) as place:
            old = place.open()
            _save(old, 0, 1)
            new = place.open()
            self.assertEqual(new.latest(), 1)
            _save(new, 2)
            with self.assertRaisesRegex(jax_cxl.StoreError, "saves no more"):
                _save(old, 3)
            self.assertNewest(place, 2)

    def test_stop_before_the_first_save(self):
        """A job that looked for snapshots, but has not saved, cannot save after its successor."""
        with places.place(_tree(0)) as place:
            _save(place.open(), 0, 1)
            old, new = place.open(), place.open()
            self.assertEqual(old.latest(), 1)
            self.assertEqual(new.latest(), 1)
            _save(new, 2)
            with self.assertRaisesRegex(jax_cxl.StoreError, "restore again"):
                _save(old, 3)
            _save(new, 4)
            self.assertNewest(place, 4)

    def test_jobs_that_only_read_stop_nobody(self):
        with places.place(_tree(0)) as place:
            living = place.open()
            for step in range(4):
                _save(living, step)
                self.assertNewest(place, step)

    def test_a_job_that_restores_again_goes_on(self):
        with places.place(_tree(0)) as place:
            snapshots = place.open()
            for step in range(40):  # More claims than there are places for them.
                _save(snapshots, step)
                self.assertEqual(_restore(snapshots), _expected(step))
            self.assertEqual(fence.newest(places.section(place)), 40)

    def test_damaged_claims_heal(self):
        with places.place(_tree(0)) as place:
            snapshots = place.open()
            _save(snapshots, 0)
            for seed in range(20):
                offset = int(np.random.default_rng(seed).integers(4096, 8192))
                place.flip(0, offset)
                _save(snapshots, seed + 1)
                self.assertNewest(place, seed + 1)

    def test_the_snapshot_to_continue_from_stays(self):
        with places.place(_tree(0), keep=3) as place:
            snapshots = place.open(keep=3)
            _save(snapshots, 0, 1, 2)
            snapshots.restore(0, _tree(0))
            stopped = place.open(keep=3)
            stopped.restore(0, _tree(0))
            _save(stopped, 7)
            again = place.open(keep=3).restore(0, _tree(0))
            places.assert_same(self, _tree(0), again)


class GoneTest(parameterized.TestCase):
    @parameterized.parameters(True, False)
    def test_a_file_that_was_deleted_or_replaced(self, replaced):
        with places.place(_tree(0)) as place:
            snapshots = place.open()
            _save(snapshots, 0)
            content = place.contents()[0]
            place.paths[0].unlink()
            if replaced:
                place.paths[0].write_bytes(content)
                os.chmod(place.paths[0], 0o600)
            for step in (1, 2):
                with self.assertRaisesRegex(
                    jax_cxl.StoreError, f"{place.paths[0]} was deleted or replaced"
                ):
                    snapshots.save(step, _tree(step))
            if replaced:
                self.assertEqual(place.contents()[0], content)

    def test_a_claim_in_a_used_slot_has_begun_nothing(self):
        with places.place({"x": 1}) as place:
            place.open()._look(make=True)
            section, slots, last = places.section(place), set(), 0
            for token in range(1, 1000):
                section.claim = claim = fence.take(section, last, token, 0)
                begun = section.geometry.begun(claim.slot)
                self.assertEqual(section.numbers(begun), [0])
                section.begin(7, 7)
                self.assertEqual(section.numbers(begun), [7])
                if claim.slot in slots:
                    return
                slots.add(claim.slot)
                last = claim.incarnation
            self.fail("no slot was used again")


if __name__ == "__main__":
    absltest.main()
