"""Lets the host play the GPUs, for tests of what the store does with arrays on GPUs."""

import contextlib
import ctypes
import itertools
import threading
from unittest import mock

import jax

from jax_cxl._store.memory import checksum, dlpack
from jax_cxl._store.reading import on_gpus
from jax_cxl._store.writing import saving, shard_bytes


class Copies:
    """Makes copies as late as a GPU may: only when somebody waits, in the order of their starts."""

    def __init__(self):
        self._started = {}
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self.most_under_way = 0
        self.checked = 0  # blocks
        self.wrong_copy = -1  # number of the copy after which a byte of its target is changed

    def start(self, ordinal, copies):
        del ordinal
        with self._lock:
            number = next(self._numbers)
            self._started[number] = copies
            self.most_under_way = max(self.most_under_way, len(self._started))
            return number

    def wait(self, number):
        with self._lock:
            for earlier in [n for n in self._started if n <= number]:
                for source, target, size in self._started.pop(earlier):
                    ctypes.memmove(target, source, size)
                if earlier == self.wrong_copy:
                    ctypes.c_uint8.from_address(target + size // 2).value ^= 1

    def checksums(self, blocks, size):
        return [[self._checksum(at, size) for at in addresses] for _, addresses in blocks]

    def _checksum(self, block, size):
        self.checked += 1
        return checksum.of((ctypes.c_uint8 * size).from_address(block))


class _BytesOnGpu(shard_bytes.DeviceBytes):
    def __init__(self, array, start):
        self._array, self._start = array, start
        (device,) = array.devices()
        self.ordinal = device.id


def _hold(ranges, copy, owned=False):
    return [
        _BytesOnGpu(array, start)
        if isinstance(array, jax.Array)
        else shard_bytes.hold([(array, start, end)], copy, owned)[0]
        for array, start, end in ranges
    ]


@contextlib.contextmanager
def arrays_on_gpus():
    with (
        mock.patch.object(saving, "hold", _hold),
        mock.patch.object(saving, "is_on_gpu", lambda _: True),
    ):
        yield


@contextlib.contextmanager
def reads_on_gpus():
    array = dlpack.Array
    with (
        mock.patch.object(on_gpus, "is_gpu", lambda _: True),
        mock.patch.object(dlpack, "Array", lambda *args: array(*args[:4], None, args[5])),
    ):
        yield
