"""The memory of residuals in a store, a ring for each device of this process (cc/store/ring)."""

import contextlib
import itertools
import secrets
import threading
import weakref
from typing import Any

import jax

from jax_cxl import _core, errors
from jax_cxl._job import platforms
from jax_cxl._store.memory import catalog, layout
from jax_cxl._store.memory.devices import Devices

# Programs name a ring by its number. All processes of a job number their rings in the same order,
# so that they compile the same programs.
_numbers = itertools.count()


class Ring:
    """The memory of some residuals, for each device of this process.

    The memory is taken when the first program that uses it is lowered, and given back when the last
    of these programs is gone.
    """

    def __init__(self, devices: Devices, needed: int, what: str):
        """Describes a ring of at least `needed` bytes for each device, and says for what."""
        row = devices.count * layout.BLOCK_BYTES
        self._rows = max(1, -(-needed // row))
        self.number = next(_numbers)
        self.bytes = self._rows * row
        self._devices, self._what = devices, what
        self._of_platforms: dict[str, list[Any]] = {}
        self._lock = threading.Lock()

    def use(self, platform: platforms.Platform) -> None:
        """Takes memory of the store for the devices of a platform, if that has not been done."""
        with self._lock:  # Threads may lower programs at the same time.
            if platform.name not in self._of_platforms:
                self._of_platforms[platform.name] = self._take(platform)

    def __repr__(self) -> str:
        return f"Ring {self.number}, {self.bytes} bytes"

    def _take(self, platform: platforms.Platform) -> list[Any]:
        if platform is platforms.CUDA and not self._devices.coherent:
            raise errors.StoreError(
                "GPUs cannot put residuals into memory with coherence=flush: the host would have"
                " to write back cache lines after each residual. Use coherent memory, or"
                " jax.checkpoint"
            )
        local = jax.local_devices(backend=platform.name)
        entry, lease = self._section(len(local))
        start = catalog.geometry_of(self._devices, entry).row(0, 0)
        size = self._rows * layout.BLOCK_BYTES
        natives: list[Any] = []
        weakref.finalize(self, _give_back, self._devices, entry, lease, natives)
        for place, device in enumerate(local):
            ordinal = platform.ordinal(device)
            natives.append(self._native(platform, ordinal, start + place * size))
        return natives

    def _native(self, platform: platforms.Platform, ordinal: int, offset: int) -> Any:
        """Makes the ring of a device. It begins at `offset` on each path."""
        core = self._devices.core
        own: dict[str, int] = {"ring": self.number, "device": ordinal, "rows": self._rows}
        if platform is platforms.CPU:
            return _core.ResidualRing(core, offset=offset, **own)
        _ = self._devices.copies  # registers the memory
        addresses = [core.address(device, offset) for device in range(self._devices.count)]
        return platform.load().ResidualRing(addresses=addresses, **own)

    def _section(self, count: int) -> tuple[catalog.Entry, _core.Lease]:
        """Makes a section for the rings of `count` devices, and leases it."""
        _delete_abandoned(self._devices)
        geometry = catalog.geometry_for(self._devices, 0)
        size = geometry.bytes_for(self._rows * count)
        while True:
            name = catalog.RESIDUALS + secrets.token_hex(8)
            try:
                entry = catalog.create(self._devices, name, 0, size)
            except errors.PoolTooSmallError as error:
                free = catalog.free_bytes(self._devices)
                raise errors.PoolTooSmallError(
                    f"{self._devices.where!r} is too small: {self._what}. Together, the {count}"
                    f" devices of this process need {size} bytes of each path, and the largest gap"
                    f" has {free} bytes. Make the store larger, delete names, or offload fewer"
                    " residuals"
                ) from error
            lease = self._devices.sessions.add_lease(catalog.lease_of(entry, 0))
            # Before this process had the lease, another process may have taken the section for an
            # abandoned one, and deleted it. Then make another section.
            if catalog.stays(self._devices, entry):
                return entry, lease
            self._devices.sessions.remove_lease(lease)


def _delete_abandoned(devices: Devices) -> None:
    """Gives back the memory of processes that were killed."""
    for entry in catalog.entries(devices):
        if entry.name.startswith(catalog.RESIDUALS):
            with contextlib.suppress(errors.StoreError):  # Its process lives.
                catalog.delete(devices, entry)


def _give_back(
    devices: Devices, entry: catalog.Entry, lease: _core.Lease, natives: list[Any]
) -> None:
    natives.clear()  # Waits for programs.
    with contextlib.suppress(errors.CxlError):
        devices.sessions.remove_lease(lease)
        catalog.delete(devices, entry)
