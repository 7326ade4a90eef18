"""The devices of a store: mapped memory, in which parity may replace one lost path."""

import ctypes
import dataclasses
import functools
import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from jax_cxl import _core, _text, errors
from jax_cxl._job import platforms
from jax_cxl._store.memory import layout


@dataclasses.dataclass
class Devices:
    """The mapped memory of a store.

    With parity, one of its paths may be lost, even while the memory is in use. Reads of a lost
    device give zeros, which no checksum fits. Writes to a lost device do nothing.

    Attributes:
      blank: devices without a superblock, in memory with parity. They are lost, or were replaced.
    """

    where: str
    core: _core.PersistentMemory
    parity: int
    coherent: bool
    blank: tuple[int, ...] = ()
    lost: set[int] = dataclasses.field(default_factory=set)

    def __post_init__(self) -> None:
        self._opener = self._process = os.getpid()
        self._sessions = self._new_sessions()
        self._copies: Any = None
        self._gpus: frozenset[int] | None = None  # for which `_copies` was made
        # Threads may need the copies at the same time, and CUDA registers memory only once.
        self._creating_copies = threading.Lock()

    @property
    def sessions(self) -> _core.Sessions:
        """The processes that use the memory. A child that was forked has a session of its own."""
        if os.getpid() != self._process:
            self._process = os.getpid()
            self._sessions = self._new_sessions()
        return self._sessions

    def _new_sessions(self) -> _core.Sessions:
        # This process takes a slot in the table of sessions with its first lease or claim.
        return _core.Sessions(self.core, self.mirrors, layout.SESSIONS_OFFSET)

    @property
    def is_inherited(self) -> bool:
        """Whether a parent has opened the memory, and this process was forked afterwards."""
        return os.getpid() != self._opener

    def check_opener(self) -> None:
        """Checks that this process may publish, which needs threads and claims of its own."""
        if self.is_inherited:
            raise errors.StoreError(
                f"process {self._opener} opened {self.where!r}, and this process was forked from it"
                " afterwards. A forked process can only read: to write here, open the store again"
            )

    @property
    def count(self) -> int:
        return self.core.num_devices

    @property
    def mirrors(self) -> list[int]:
        """The usable devices that each have a copy of the catalog and of the sessions."""
        known = [device for device in self.usable if device not in self.blank]
        return known if self.parity else known[:1]

    @property
    def usable(self) -> list[int]:
        """The devices whose paths are not lost."""
        return [device for device in range(self.count) if device not in self.lost]

    @property
    def copies(self) -> Any:
        """The object that copies from this process's GPUs.

        The first use takes long, because it registers the memory with CUDA.
        """
        import jax

        with self._creating_copies:
            if self._copies is None:
                ordinals = [platforms.CUDA.ordinal(device) for device in jax.local_devices()]
                self._create_copies(ordinals)
            return self._copies

    def copies_for(self, gpus: frozenset[int]) -> Any | None:
        """Registers the memory for PyTorch's GPUs; returns what computes checksums, if any.

        Raises a CxlError if CUDA cannot register it, or if this package was built without nvcc.
        """
        with self._creating_copies:
            if self._copies is None:
                self._create_copies(sorted(gpus))
            return self._copies if self._gpus is None or gpus <= self._gpus else None

    def _create_copies(self, ordinals: list[int]) -> None:
        create = platforms.CUDA.load().DeviceCopies.create
        self._copies = create(self.core, self.core.base, self.core.total_bytes, ordinals)
        self._gpus = frozenset(ordinals)

    @functools.cached_property
    def mapped(self) -> np.ndarray:
        """Returns a view of all bytes. Its reads and writes lack the operations for coherence."""
        mapped = (ctypes.c_uint8 * self.core.total_bytes).from_address(self.core.base)
        return np.ctypeslib.as_array(mapped)

    def read(self, device: int, offset: int, size: int) -> np.ndarray:
        """Returns a private copy of bytes of a device."""
        out = np.empty(size, np.uint8)
        self.read_into(device, offset, out)
        return out

    def read_into(self, device: int, offset: int, out: np.ndarray) -> None:
        """Copies bytes of a device into private memory."""
        if not self.access(device, lambda: self.core.read(device, offset, out)):
            out[:] = 0

    def load_word(self, device: int, offset: int) -> int:
        words: list[int] = []
        self.access(device, lambda: words.append(self.core.load_word(device, offset)))
        return words[0] if words else 0

    def write(self, device: int, offset: int, data: Any) -> None:
        """Copies bytes (any object with the buffer protocol) to a device, and publishes them."""
        array = np.frombuffer(data, np.uint8)
        self.access(device, lambda: self.core.write(device, offset, array))

    def store_word(self, device: int, offset: int, value: int) -> None:
        """Stores a word after all earlier writes of this thread."""
        self.access(device, lambda: self.core.store_word(device, offset, value))

    def write_entry(self, device: int, offset: int, data: bytes) -> None:
        """Writes an entry: its first word, written last, says that the rest is complete."""
        self.store_word(device, offset, 0)
        self.write(device, offset + 8, data[8:])
        self.store_word(device, offset, int.from_bytes(data[:8], "little"))

    def read_entry(self, device: int, offset: int, size: int) -> bytes | None:
        """Reads an entry of a table; returns None if it is empty, or is just being written."""
        word = self.load_word(device, offset)
        if not word:
            return None
        data = self.read(device, offset, size).tobytes()
        first = int.from_bytes(data[:8], "little")
        return data if first == word == self.load_word(device, offset) else None

    def publish_device_writes(self, device: int, offset: int, size: int) -> None:
        """Publishes bytes that a GPU has written."""
        self.access(device, lambda: self.core.publish_device_writes(device, offset, size))

    def check_paths(self) -> None:
        """Checks that files still have their names and sizes."""
        self.core.check_files()
        self.check_intact()

    def check_intact(self) -> None:
        """Checks that no memory was lost so far. It asks the system for nothing."""
        for device in self.usable:
            self.access(device, functools.partial(self.core.check_intact, device))

    def access(self, device: int, run: Callable[[], None]) -> bool:
        """Calls `run`, which uses a device; returns False if that fails: the device is lost."""
        if device in self.lost:
            return False
        try:
            run()
        except errors.PoolCorruptError as error:
            self._lose(device, error)
            return False
        return True

    def _lose(self, device: int, why: errors.PoolError) -> None:
        path = self.core.path(device)
        lost = self.lost | {d for d in range(self.count) if self.core.path(d) == path}
        if len(lost) > self.parity:
            others = {self.core.path(d) for d in self.lost}
            more = (
                f". {', '.join(others)} is lost too, and parity can replace only one path: bring"
                " one of the paths back, or restore a checkpoint into a new store"
                if others
                else ""
            )
            raise errors.StoreError(f"{self.where!r}: {why}{more}") from why
        self.lost = lost
        _text.warn(
            "%r: %s. Saves and restores continue without it, with parity. Replace it, then repair"
            " the store, before another path is lost",
            self.where,
            str(why),  # Handlers keep the arguments, and the error keeps the mapping.
        )
