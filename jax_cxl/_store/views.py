"""Arrays over the memory of a store, without a copy."""

import contextlib
import threading
import types
import weakref
from typing import Any, Self

import numpy as np

from jax_cxl import _core, errors
from jax_cxl._job import platforms
from jax_cxl._store import following
from jax_cxl._store.memory import dlpack, layout
from jax_cxl._store.memory.devices import Devices
from jax_cxl._store.memory.layout import Records
from jax_cxl._store.memory.section import Section
from jax_cxl._store.reading import rebuilding
from jax_cxl._store.reading.restoring import Reader
from jax_cxl._store.trees import leaves, names


class View:
    """Arrays over a version in the memory of a store.

    The version is not overwritten as long as the view is open, or one of its arrays lives.

    Attributes:
      version: the version.
    """

    def __init__(self, version: int, tree: Any, held: "_Held"):
        """Holds a tree of arrays, and the lease that protects their version."""
        self.version = version
        self._tree = tree
        self._held: _Held | None = held

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def section(self) -> Section:
        """The section of the name; only of an open view."""
        assert self._held is not None
        return self._held.section

    @property
    def tree(self) -> Any:
        """The arrays; None if the view is closed.

        Raises:
          StoreError: the store's file was cut short, deleted or replaced, or its memory failed.
        """
        if self._held is not None:
            self._held.check_memory()
        return self._tree

    def check(self) -> None:
        """Checks that the arrays have been those of the version all the time.

        Raises:
          StoreError: the version may have been overwritten while this process was stopped; or the
            file of the store was cut short, deleted or replaced, or its memory failed, so that
            arrays may have zeros. Then compute everything again that was computed from its arrays.
        """
        self._open().check()

    def dlpack(self, path: str) -> Any:
        """Returns an array as an object with `__dlpack__`, for example for `torch.from_dlpack`.

        Args:
          path: the path of the leaf, such as "params/w".

        Raises:
          KeyError: there is no such leaf.
          StoreError: DLPack does not support the dtype of the leaf.
        """
        held = self._open()
        return held.dlpack(held.leaf(path), gpu=None)

    def close(self) -> None:
        """Closes the view. The version may be overwritten once the last of its arrays is gone."""
        self._held, self._tree = None, None

    def _open(self) -> "_Held":
        if self._held is None:
            raise errors.StoreError("the view is closed: open another")
        return self._held


def view(devices: Devices, name: str, like: Any, version: int | None) -> View:
    """Returns a view; see `Store.view`."""
    wanted = following.Wanted.of(like, version, None, None, None)
    while True:
        section, found = following.candidates(devices, name, wanted)
        with contextlib.ExitStack() as stack:
            lease = stack.enter_context(following.leased(section, found[0]))
            if lease is None:
                continue
            held = _Held(section, found[0], lease)
            weakref.finalize(held, stack.pop_all().close).atexit = False
            return View(found[0][0].version, _tree(held, wanted.tree), held)


class _Held:
    """A version that this process has leased. The arrays over it keep this object alive."""

    def __init__(self, section: Section, records: Records, lease: _core.Lease):
        self.section, self.devices = section, section.devices
        # Keep the sessions to which the lease belongs. In a forked child, `devices.sessions` are
        # other sessions.
        self._sessions, self._lease = section.devices.sessions, lease
        self.reader = Reader(section, records)
        self._checked: set[str] = set()
        self._used: set[int] = set()  # devices
        self._lock = threading.Lock()
        self.what = section.text_of(records[0].version)

    def check(self) -> None:
        """Checks that the lease has protected the version without interruption."""
        self.devices.check_paths()
        self.check_memory()
        if not self._sessions.holds(self._lease):
            raise errors.StoreError(
                f"{self.what} may have been overwritten, because this process was stopped for a"
                " time, or was forked since: open a new view, and compute again what was computed"
                " from this one"
            )

    def check_memory(self) -> None:
        """Checks that no memory of the arrays was lost so far."""
        self.devices.check_intact()
        if lost := self._used & self.devices.lost:
            raise errors.StoreError(
                f"{self.what} has arrays in {self.devices.core.path(min(lost))}, which was lost:"
                " read it, or open a new view after a repair, and compute again what was computed"
                " from this one"
            )

    def leaf(self, path: str) -> leaves.Leaf:
        """Returns the leaf with a path, or raises KeyError."""
        found = self.reader.leaves
        leaf = names.by_path(found).get(path) or found.get(path)
        if leaf is None or not leaf.dtype:
            raise KeyError(path)
        return leaf

    def array(self, leaf: leaves.Leaf) -> np.ndarray:
        """Returns an array over the memory, after its data have been checked."""
        if not leaf.stored_bytes:
            return np.empty(leaf.shape, leaves.dtype_of(leaf.dtype))
        device, offset, size = self._find(leaf)
        address = self.devices.core.address(device, offset)
        read_only = True
        bytes_ = {"data": (address, read_only), "shape": (size,), "typestr": "|u1", "version": 3}
        # The arrays that NumPy makes keep this object alive.
        over = types.SimpleNamespace(__array_interface__=bytes_, held=self)
        dtype = leaves.dtype_of(leaf.dtype)
        return np.asarray(over).view(dtype).reshape(leaf.shape)

    def dlpack(self, leaf: leaves.Leaf, *, gpu: int | None) -> Any:
        """Returns an object with `__dlpack__`; `gpu` as for `dlpack.Array`."""
        dtype = leaves.dtype_of(leaf.dtype)
        if dlpack.code_of(dtype) is None:
            raise errors.StoreError(f"DLPack has no arrays of {dtype}: read {leaf.name} instead")
        device, offset, _ = self._find(leaf)
        core = self.devices.core
        return dlpack.Array(core, (device, offset), leaf.shape, dtype, gpu, self)

    def _find(self, leaf: leaves.Leaf) -> tuple[int, int, int]:
        """Checks the data of an array, and returns its device, its offset and its size."""
        parts = self.reader.parts(leaf)
        size = leaf.stored_bytes
        if leaf.local or len(parts) != 1 or len(leaf.shards) != 1:
            shards = len(leaf.shards)
            raise errors.StoreError(
                f"{leaf.name} of {self.what} cannot be viewed: it was published in {max(2, shards)}"
                " shards. Read it, or publish it replicated or from one device"
            )
        (part,) = parts
        first, inside = divmod(part.offset, layout.BLOCK_BYTES)
        last = (part.offset + size - 1) // layout.BLOCK_BYTES
        own = self.reader.stripes[part.writer]
        if last > first and self.section.geometry.num_devices > 1:
            raise errors.StoreError(
                f"{leaf.name} of {self.what} cannot be viewed: its bytes are spread over the paths"
                " of the store. Read it, or use a store of one path"
            )
        with self._lock:
            if leaf.name not in self._checked:
                # The check also makes visible to this host what other hosts have written.
                # Parity cannot help, because a view does not write to the blocks.
                for _ in self.reader.checks_of(part.writer, range(first, last + 1)):
                    pass  # Raises the error of a thread.
                self._checked.add(leaf.name)
        device, offset = own.place(first)
        self._used.add(device)
        return device, offset + inside, size


def _tree(held: _Held, wanted: rebuilding.Wanted | None) -> Any:
    if wanted is None:
        of = names.by_path(held.reader.leaves)
        return {path: held.array(leaf) if leaf.dtype else leaf.value for path, leaf in of.items()}
    found = rebuilding.by_names(wanted.names, held.reader.leaves)
    made = [_like(held, x, leaf) for x, leaf in zip(wanted.likes, found, strict=True)]
    return wanted.structure.unflatten(made)


def _like(held: _Held, like: Any, leaf: leaves.Leaf) -> Any:
    if not leaf.dtype:
        return leaf.value
    if leaf.key:
        raise errors.StoreError(f"{leaf.name} has typed PRNG keys, which need a copy: read it")
    rebuilding.check_fits(leaf, like)
    if isinstance(like, np.ndarray | np.generic):
        return held.array(leaf)
    import jax

    sharding = getattr(like, "sharding", None)
    device = next(iter(sharding.device_set)) if sharding is not None else jax.local_devices()[0]
    if device.platform == "cpu":
        # Arrays in the store are aligned, so XLA uses their memory without a copy.
        return jax.device_put(held.array(leaf), device, may_alias=True)
    _ = held.devices.copies  # registers the memory
    return jax.dlpack.from_dlpack(held.dlpack(leaf, gpu=platforms.CUDA.ordinal(device)))
