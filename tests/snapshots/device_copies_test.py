"""Saves of arrays on GPUs, with the host in the place of GPUs: the order of copies and checks."""

import contextlib
import ctypes
import itertools
import threading
from unittest import mock

import jax
import numpy as np
import places
from absl.testing import absltest, parameterized

import jax_cxl
from jax_cxl._store.memory import checksum
from jax_cxl._store.writing import device_copies, publisher, saving, shard_bytes


class _Copies:
    """Copies when somebody waits, as late as a GPU may; one after the other."""

    def __init__(self):
        self._started = {}
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self.most_under_way = 0
        self.checked = 0  # blocks
        self.wrong_copy = -1  # number of the copy after which a byte of its target is changed

    def start(self, ordinal, source, target, size):
        del ordinal
        with self._lock:
            number = next(self._numbers)
            self._started[number] = (target, source, size)
            self.most_under_way = max(self.most_under_way, len(self._started))
            return number

    def wait(self, number):
        with self._lock:
            for earlier in [n for n in self._started if n <= number]:
                target, source, size = self._started.pop(earlier)
                ctypes.memmove(target, source, size)
                if earlier == self.wrong_copy:
                    ctypes.c_uint8.from_address(target + size // 2).value ^= 1

    def checksums(self, ordinal, blocks, size):
        del ordinal
        self.checked += len(blocks)
        return [checksum.of((ctypes.c_uint8 * size).from_address(block)) for block in blocks]


class _BytesOnGpu(shard_bytes.DeviceBytes):
    def __init__(self, array, start):
        self._array, self._start, self.ordinal = array, start, 0


def _hold(ranges, copy):
    return [
        _BytesOnGpu(array, start)
        if isinstance(array, jax.Array)
        else shard_bytes.hold([(array, start, end)], copy)[0]
        for array, start, end in ranges
    ]


@contextlib.contextmanager
def _arrays_on_gpus():
    with (
        mock.patch.object(saving, "hold", _hold),
        mock.patch.object(publisher, "is_on_gpu", lambda _: True),
    ):
        yield


def _tree(step):
    rng = np.random.default_rng(step)
    mesh = jax.make_mesh((4,), ("x",), (jax.sharding.AxisType.Auto,))
    replicated = jax.NamedSharding(mesh, jax.P())
    return {
        "large": jax.device_put(rng.standard_normal(5_000_001, np.float32), replicated),
        "host": rng.integers(0, 100, 300_001),
        "small": jax.device_put(rng.integers(0, 100, 7), replicated),
        "step": step,
    }


class DeviceCopiesTest(parameterized.TestCase):
    @parameterized.parameters((1, 0), (3, 0), (2, 1), (3, 1))
    def test_what_was_saved_is_restored(self, paths, parity):
        copies = _Copies()
        with places.place(_tree(0), paths=paths, parity=parity) as place:
            snapshots = place.open(parity=parity)
            snapshots._publisher.section.devices.__dict__["copies"] = copies
            with _arrays_on_gpus():
                for step in range(3):
                    snapshots.save(step, _tree(step))
                snapshots.wait()
            places.assert_same(self, (2, _tree(2)), snapshots.restore_latest(_tree(0)))
            places.assert_same(self, _tree(1), snapshots.restore(1, _tree(0)))
            if parity:
                place.zero(1)
                again = place.open(parity=parity)
                places.assert_same(self, (2, _tree(2)), again.restore_latest(_tree(0)))
        self.assertGreater(copies.most_under_way, 0)
        # "large" has 19 blocks, some of which lie in two parts.
        self.assertGreater(copies.checked, 3 * 12)

    def test_a_wrong_copy_is_found(self):
        copies = _Copies()
        copies.wrong_copy = 0  # The first copy belongs to "large", and has whole blocks.
        with places.place(_tree(0)) as place:
            snapshots = place.open()
            snapshots._publisher.section.devices.__dict__["copies"] = copies
            with _arrays_on_gpus():
                snapshots.save(1, _tree(1))
                snapshots.wait()
            with self.assertRaisesRegex(jax_cxl.StoreError, "block .* is damaged"):
                snapshots.restore(1, _tree(0))

    def test_few_copies_are_under_way(self):
        copies = _Copies()
        with (
            mock.patch.object(device_copies, "_CHUNK_BYTES", 1 << 20),
            mock.patch.object(device_copies, "_CHUNKS_UNDER_WAY", 2),
            places.place(_tree(0)) as place,
        ):
            snapshots = place.open()
            snapshots._publisher.section.devices.__dict__["copies"] = copies
            with _arrays_on_gpus():
                snapshots.save(1, _tree(1))
                snapshots.wait()
            places.assert_same(self, _tree(1), snapshots.restore(1, _tree(0)))
        # 20 chunks, of which two have at most some ends of parts besides.
        self.assertBetween(copies.most_under_way, 2, 6)


if __name__ == "__main__":
    absltest.main()
