"""Calls CUDA's driver by ctypes: what a measurement needs of a card."""

from __future__ import annotations

import ctypes
import functools
import time
from collections.abc import Callable
from typing import Any

_CAPABILITY = (75, 76)  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR
_LINK_BYTES = 64 << 20
_LINK_COPIES = 16


@functools.cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def call(name: str, *arguments: Any) -> None:
    """Calls a function of the driver. An error is raised as RuntimeError."""
    result = getattr(_driver(), name)(*arguments)
    if result:
        text = ctypes.c_char_p()
        _driver().cuGetErrorString(result, ctypes.byref(text))
        raise RuntimeError(f"{name} returned {result}: {(text.value or b'').decode()}")


def count() -> int:
    """Returns the number of cards; raises OSError if there is no driver."""
    number = ctypes.c_int()
    _driver()
    call("cuInit", 0)
    call("cuDeviceGetCount", ctypes.byref(number))
    return number.value


def version() -> str:
    """Returns the newest version of CUDA that the driver supports."""
    number = ctypes.c_int()
    call("cuDriverGetVersion", ctypes.byref(number))
    return f"{number.value // 1000}.{number.value % 1000 // 10}"


def describe(card: int, cards: int) -> dict[str, Any]:
    """Returns the properties of a card, and the other cards whose memory it can access."""
    name, total, number = ctypes.create_string_buffer(256), ctypes.c_size_t(), ctypes.c_int()
    call("cuDeviceGetName", name, len(name), card)
    call("cuDeviceTotalMem_v2", ctypes.byref(total), card)

    def get(function: str, *arguments: int) -> int:
        call(function, ctypes.byref(number), *arguments)
        return number.value

    major, minor = (get("cuDeviceGetAttribute", which, card) for which in _CAPABILITY)
    others = [other for other in range(cards) if other != card]
    return {
        "name": name.value.decode(),
        "memory_gib": round(total.value / 2**30, 1),
        "capability": f"{major}.{minor}",
        "peers": [other for other in others if get("cuDeviceCanAccessPeer", card, other)],
    }


class Card:
    """A card that this process uses, and a stream on it."""

    def __init__(self, card: int) -> None:
        context = ctypes.c_void_p()
        call("cuInit", 0)
        call("cuDevicePrimaryCtxRetain", ctypes.byref(context), card)
        call("cuCtxSetCurrent", context)
        self.stream = _made("cuStreamCreate", 1)
        self._events = [_made("cuEventCreate", 0) for _ in range(2)]

    def memory(self, size: int) -> int:
        """Allocates memory of the card; returns its address."""
        return _made("cuMemAlloc_v2", ctypes.c_size_t(size)).value or 0

    def fill(self, address: int, data: bytes) -> None:
        """Copies bytes to memory of the card."""
        call("cuMemcpyHtoD_v2", ctypes.c_void_p(address), data, ctypes.c_size_t(len(data)))
        call("cuCtxSynchronize")

    def read(self, address: int, size: int) -> bytes:
        """Returns what memory of the card contains."""
        data = ctypes.create_string_buffer(size)
        call("cuMemcpyDtoH_v2", data, ctypes.c_void_p(address), ctypes.c_size_t(size))
        return data.raw

    def microseconds(self, enqueue: Callable[[], None]) -> float:
        """Returns the time of what a function enqueues on the stream."""
        begin, end = self._events
        call("cuEventRecord", begin, self.stream)
        enqueue()
        call("cuEventRecord", end, self.stream)
        call("cuEventSynchronize", end)
        taken = ctypes.c_float()
        call("cuEventElapsedTime", ctypes.byref(taken), begin, end)
        return taken.value * 1e3

    def link(self) -> dict[str, float]:
        """Measures copies of pinned memory in GB/s: to the card, from it, and both at once."""
        size = ctypes.c_size_t(_LINK_BYTES)
        card, host = (
            [_made(name, size, *flags) for _ in range(2)]
            for name, flags in (("cuMemAlloc_v2", ()), ("cuMemHostAlloc", (0,)))
        )
        other = _made("cuStreamCreate", 1)
        copies = {
            "to": ("cuMemcpyHtoDAsync_v2", card[0], host[0], size, self.stream),
            "from": ("cuMemcpyDtoHAsync_v2", host[1], card[1], size, other),
        }
        found = {}
        for name, enqueued in (("to", ("to",)), ("from", ("from",)), ("both", ("to", "from"))):
            for turns in (1, _LINK_COPIES):  # The first turn is not measured.
                begin = time.perf_counter()
                for each in turns * enqueued:
                    call(*copies[each])
                call("cuCtxSynchronize")
            moved = turns * len(enqueued) * _LINK_BYTES
            found[name] = round(moved / (time.perf_counter() - begin) / 1e9, 1)
        return found


def _made(function: str, *arguments: Any) -> ctypes.c_void_p:
    """Calls a function that makes something; returns what it made."""
    made = ctypes.c_void_p()
    call(function, ctypes.byref(made), *arguments)
    return made
