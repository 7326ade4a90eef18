"""Trees of arrays that jobs publish in a memory pool, and that any other job reads."""

import contextlib
import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from jax_cxl import errors
from jax_cxl._store import arguments, following
from jax_cxl._store.memory import catalog, opening
from jax_cxl._store.memory.section import Section
from jax_cxl._store.publishing import Names
from jax_cxl._store.reading.version import Version

if TYPE_CHECKING:
    from jax_cxl._store import views


@dataclasses.dataclass(frozen=True)
class Listed:
    """A name in a store.

    Attributes:
      name: the name.
      versions: its valid versions, the newest first.
      keep: how many versions are kept.
      bytes: bytes of memory that the name takes on each path.
    """

    name: str
    versions: tuple[int, ...]
    keep: int
    bytes: int


class Store:
    """Named, versioned trees of arrays in a memory pool.

    One job publishes a name. Any process of any job reads it, at any time, with any sharding,
    without a common job, without JAX's distributed runtime, and even after the publisher has ended.
    A reader sees whole versions only. Reader and publisher do not wait for each other.

    Each name has memory for `keep` versions and one more. A version that is being read is not
    overwritten. All data are checked by checksums before they are used. docs/store.md says more.
    """

    def __init__(self, where: str, *, parity: int | None = None) -> None:
        """Opens the memory. If it is new, the first call that writes prepares it.

        Args:
          where: URI of the memory, as for `Snapshots`. `size` is the size of each path.
          parity: 1 adds parity, so that each version survives the loss of any one path. By default
            the parity of the memory, or 0 if the memory is new.

        Raises:
          PoolError: the memory cannot be opened.
          StoreError: it holds something else, or has another `parity`.
          CxlError: the package xxhash is missing.
          TypeError, ValueError: an argument is wrong.

        If there is no store yet, calls that write raise these errors when they make it, and calls
        that read raise a StoreError. Calls that wait also wait for the store.

        Example:
          >>> store = jax_cxl.Store("shm:weights?size=64MiB")
          >>> store.publish("policy", params)
          >>> version, params = store.read("policy", params)
        """
        arguments.check_where(where)
        self._names = Names(where, parity)
        with contextlib.suppress(opening.AbsentError):
            self._names.devices()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def publish(
        self,
        name: str,
        tree: Any,
        *,
        version: int | None = None,
        keep: int | None = None,
        copy: bool = True,
    ) -> int:
        """Publishes a version of a tree while the program continues.

        All processes of the job call it at the same place of the program. It first waits until the
        previous version of the name is complete. It returns as soon as the arrays may be donated,
        as `Snapshots.save` does. Each process writes the shards of its own devices. Replicated
        arrays are written once. A block of 1 MiB that this job has already written with the same
        content is not written again.

        Args:
          name: 1 to 128 printable bytes.
          tree: as for `Snapshots.save`.
          version: a number greater than the last version. The default is the last version plus one,
            or 0 for the first version. A version that was damaged, or that a lost job had begun,
            also counts as the last one then.
          keep: how many versions are kept, at least 2 (the default). It is fixed when the name is
            new.
          copy: as for `Snapshots.save`.

        Returns:
          The version.

        Raises:
          StoreError: another living job publishes the name; the message says which job. Or the name
            has another `keep`, or readers keep all memory of the name busy for `JAX_CXL_TIMEOUT`.
          PoolTooSmallError: the store has no room for the name, or the tree is larger than the
            trees for which the name was made. The message contains the size that is needed.
          MismatchError, PeerLostError, CollectiveTimeoutError, TypeError, ValueError: as for
            `Snapshots.save`.

        After an error nothing of this tree has been published.
        """
        from jax_cxl._store.trees import flatten

        flattener = flatten.Flattener(whole=True)
        publisher = self._names.publisher(
            name, lambda writers: flattener.flatten(tree, writers), keep
        )
        try:
            return publisher.save(version, tree, copy=copy)
        except errors.StoreError:
            if not publisher.section.is_current():
                # The name was deleted. The next call makes it again.
                self._names.forget(name)
            raise

    def flush(self, name: str, timeout: float | None = None) -> None:
        """Waits until the last version that this job has published under a name is complete.

        Args:
          name: the name.
          timeout: seconds, by default `JAX_CXL_TIMEOUT`.

        Raises:
          CxlError: as for `Snapshots.wait`.
        """
        if (publisher := self._names.known(name)) is not None:
            publisher.wait(timeout)

    def read(
        self,
        name: str,
        like: Any = None,
        *,
        version: int | None = None,
        newer_than: int | None = None,
        timeout: float | None = None,
        into: Version | Mapping[str, Any] | None = None,
        non_blocking: bool = False,
    ) -> Version:
        """Reads a version of a tree.

        Every process reads for itself. If `like` has an array over several processes, all processes
        of the job call it at the same place, and get the same version.

        Args:
          name: the name.
          like: tree of arrays, or of `jax.ShapeDtypeStruct` with shardings, on any devices. Leaves
            that only the store has are left out. None returns all leaves as NumPy arrays, in a
            dict whose keys are the paths of the leaves, such as "params/w". Leaves whose paths
            would be equal have their names as keys, such as `['a/b']` and `['a']['b']`.
          version: the version to read, by default the newest. A damaged version is reported to the
            logger `jax_cxl`, and the version before it is read, unless `version` is given.
          newer_than: waits for a version that is newer than this.
          timeout: how many seconds to wait for a newer version, by default `JAX_CXL_TIMEOUT`.
          into: where to read to, one of two things. A dict of NumPy arrays, or of tensors of
            PyTorch on the CPU or on NVIDIA GPUs, by the paths of their leaves: the read overwrites
            them, and reads no other leaves. A tuple of an array and slices, such as
            `(x, numpy.s_[:, 8:16])`, takes a part of a leaf. Or the result of an earlier read, for
            one later read: then only what has changed is read, into the arrays of that result. Do
            not write into them. If the earlier read has made them, a NumPy array that something
            else refers to stays as it is, and so does a JAX array that shares its memory: that leaf
            is read into a new array. After an error the arrays of `into` are undefined, unless the
            error says that they do not fit.
          non_blocking: whether to return as soon as the copies to tensors on GPUs have been
            started. Call `wait()` of the result before the program uses the tensors, so that
            PyTorch's current streams wait for the copies, and later `check()`, which raises a
            StoreError if the version is damaged. The version is not overwritten until then.

        Returns:
          The version and the tree: `version, tree = store.read(...)`.

        Raises:
          StoreError: there is no store, or no such version, or the version is damaged, or it does
            not fit `like`.
          StoreTimeoutError: no newer version came in time.
          TypeError, ValueError: an argument, or a leaf of `like`, is wrong; or `into` was given to
            a read before.
        """
        wanted = following.Wanted.of(like, version, newer_than, timeout, into, non_blocking)
        seconds = 0 if newer_than is None else wanted.seconds
        open_memory = functools.partial(self._names.devices, seconds)
        return following.read(open_memory, catalog.check_name(name), wanted)

    def wait(self, name: str, newer_than: int | None = None, timeout: float | None = None) -> int:
        """Waits for a version of a name; returns the newest.

        Args:
          name: the name.
          newer_than: waits for a version that is newer than this; None waits for any.
          timeout: seconds, by default `JAX_CXL_TIMEOUT`.

        Raises:
          StoreTimeoutError: no version came in time.
        """
        newer_than = -1 if newer_than is None else arguments.whole("newer_than", newer_than)
        seconds = following.seconds_of(timeout)
        name = catalog.check_name(name)
        _, found = following.wait(self._names.devices(seconds), name, newer_than, seconds)
        return found[0][0].version

    def view(self, name: str, like: Any = None, *, version: int | None = None) -> "views.View":
        """Returns arrays over the memory of the store, without a copy.

        The arrays cannot be written to. The version is not overwritten as long as one of them
        lives. All data are checked once, before this function returns.

        Args:
          name: the name.
          like: as for `read`. If `like` puts a JAX array on a GPU, the result has the array in the
            `pinned_host` memory of this GPU. Each array must have been published as one shard: by
            one device, or replicated.
          version: the version, by default the newest.

        Returns:
          A view, with `version` and `tree`.

        Raises:
          StoreError: as for `read`, or an array has several shards, or is spread over several
            paths. Use `read` then.
        """
        from jax_cxl._store import views

        name = catalog.check_name(name)
        return views.view(self._names.devices(), name, like, version)

    def list(self) -> "Sequence[Listed]":
        """Returns the names in the store, in order."""
        found = []
        devices = self._names.devices()
        for name in [entry.name for entry in catalog.entries(devices)]:
            if known := Section.find_versions(devices, name):
                entry = known[0].entry
                numbers = tuple(records[0].version for records in known[1])
                found.append(Listed(entry.name, numbers, entry.keep, entry.end - entry.start))
        return found

    def delete(self, name: str) -> None:
        """Deletes a name with all its versions, and frees its memory.

        One process calls it. If this job has published the name, all of its processes call it, at
        the same place of the program.

        Raises:
          StoreError: there is no such name, another process reads it, or another living job
            publishes it.
        """
        self._names.delete(name)

    def close(self) -> None:
        """Waits until this process has written its parts of all versions that it publishes."""
        self._names.close()


def names_of(store: Any) -> Names:
    """Returns the inner interface of a store, for tables and offload."""
    if not isinstance(store, Store):
        raise TypeError(f"store={store!r} must be a jax_cxl.Store")
    return store._names
