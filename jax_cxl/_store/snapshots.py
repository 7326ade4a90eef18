"""Training state in memory that outlives the hosts."""

import contextlib
import functools
from typing import Any, Self

from jax_cxl import errors
from jax_cxl._store import agreement, arguments, following, publishing
from jax_cxl._store.memory import catalog, layout, opening
from jax_cxl._store.memory.section import Section
from jax_cxl._store.publishing import Names
from jax_cxl._store.reading import rebuilding
from jax_cxl._store.reading.version import Version
from jax_cxl._store.trees import flatten
from jax_cxl._store.writing.publisher import Publisher

NAME = "snapshots"  # name of the section, which has all of the memory


class Snapshots:
    """Training state in a memory pool. It stays there when hosts fail, and when the job ends.

    `save` writes a tree of arrays while the program runs. After a failure `restore` reads it back,
    on any number of processes, with any sharding. Nothing is read from a disk.

    The last `keep` snapshots are kept. The newest snapshot stays valid while the next one is saved.
    Each process writes the shards of its own devices. Replicated arrays are stored once, and their
    devices share the work. A snapshot becomes valid for all processes at one instant, when the last
    process has written its part. All data are checked by checksums before they are used.

    All processes of the job call `save`, `latest`, `restore` and `restore_latest` at the same
    places of the program, as they call collectives. If one process has an error, all of them raise
    an error. Then nothing has been saved, and they may save again. docs/store.md says more.
    """

    def __init__(self, where: str, *, keep: int = 2, parity: int = 0) -> None:
        """Opens the memory. If it is new, the first `save` prepares it.

        Args:
          where: URI of the memory (docs/store.md): `file:/path?size=1GiB`,
            `dax:/dev/dax0.0?offset=2MiB`, or `shm:NAME?size=1GiB` for tests on one machine. Memory
            of the last kind outlives processes, but not the machine. `size` is the size of each
            path; `bytes_needed` returns how large it must be. Several paths share the load.
          keep: how many snapshots stay, at least 2. Each snapshot takes its own memory.
          parity: 1 adds parity, so that each snapshot survives the loss of any one path. The parity
            takes as much space as one path.

        Raises:
          PoolError: the memory cannot be opened.
          StoreError: the memory holds something else, or snapshots with another `keep` or `parity`.
          CxlError: the package xxhash is missing.
          TypeError, ValueError: an argument is wrong.

        In a job of several processes the first operation raises these errors, on all processes.
        The first `save` raises them if the memory is new.

        Example:
          >>> snapshots = jax_cxl.Snapshots("shm:my_run?size=64MiB")
          >>> found = snapshots.restore_latest(state)
          >>> step, state = found or (0, state)
          >>> snapshots.save(step, state)
        """
        self._keep, self._parity = keep, parity
        self._names = Names(where, parity)
        self._look()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @staticmethod
    def bytes_needed(tree: Any, *, keep: int = 2, parity: int = 0, paths: int = 1) -> int:
        """Returns the `size` in bytes that each path must have for snapshots of this tree.

        Args:
          tree: as for `save`.
          keep: as for `Snapshots`.
          parity: as for `Snapshots`.
          paths: how many paths `where` has.

        Raises:
          TypeError, ValueError: an argument is wrong, or a leaf of the tree, as for `save`.
        """
        arguments.check_keep(keep)
        arguments.check_parity(parity)
        arguments.check_paths(parity, paths)
        geometry = layout.Geometry(keep, parity, paths, 0, 0)
        flat = flatten.Flattener(whole=False).flatten(tree, tuple(agreement.processes()))
        needed = flat.description.section_bytes(flat.values, geometry)
        return layout.SECTIONS_OFFSET + needed

    def save(self, step: int, tree: Any, *, copy: bool = True) -> None:
        """Saves a tree while the program continues.

        It first waits until the previous save is valid. So a failure loses at most the last two
        trees that were given to `save`, and only the last tree if the last `save` has returned. It
        also waits until all processes have called it, and compares what they save.

        Once `save` has returned, the arrays may be donated to a program. On CPUs `save` waits until
        their values have been computed. If a program gets a donated array that has not been saved
        yet, XLA gives the program other memory for its results. On GPUs `save` copies the arrays
        within the GPU's memory, and returns before their values have been computed.

        Args:
          step: a number, which `latest` returns later. It is at least 0, and greater than the step
            of the previous save, unless `latest` or `restore` has been called since.
          tree: JAX or NumPy arrays, bool, int, float, str, None. Each process saves its own NumPy
            arrays, and its own arrays whose devices all belong to it. Everything else must be the
            same on all processes.
          copy: False leaves out the copy within a GPU's memory. Then JAX raises an error if the
            arrays are donated before `wait` has returned.

        Raises:
          MismatchError: the processes save different trees, steps or Python values. The message
            names the first leaf that differs.
          PoolTooSmallError: the memory is too small. The message contains the size that is needed.
          StoreError: another process cannot save. Or another job has begun to save to the same
            place, or a file was deleted or replaced: in these two cases, all later saves of this
            job fail too.
          PeerLostError, CollectiveTimeoutError, PoolError: as for `wait` on the previous save, or
            because another process does not save.
          TypeError, ValueError: a leaf or an argument is wrong.

        After an error nothing of this tree has been written.
        """
        if step is None:  # In a store, None stands for the next version.
            raise TypeError("step=None must be an int, not NoneType")
        self._look(make=True).save(step, tree, copy=copy)

    def wait(self, timeout: float | None = None) -> None:
        """Waits until the last save is a valid snapshot.

        Args:
          timeout: seconds, by default `JAX_CXL_TIMEOUT`.

        Raises:
          CollectiveTimeoutError: another process has not written its part in time.
          PeerLostError: another process has ended before it wrote its part.
          MismatchError: the copies of a replicated array differ. The snapshot is not valid.
          PoolError: this process could not write its part.
          StoreError: another process could not write its part.
          TypeError, ValueError: `timeout` is not a number of seconds.
        """
        self._publisher.wait(timeout)

    def latest(self) -> int | None:
        """Returns the step of the newest valid snapshot, None if there is none.

        Processes that replace lost ones call it together with the survivors.
        """
        with contextlib.suppress(opening.AbsentError):
            return self._names.agreed(NAME, self._section, "latest").newest_version
        return None

    def restore(self, step: int, like: Any) -> Any:
        """Reads the snapshot of a step.

        Args:
          step: step of a valid snapshot, for example the step that `latest` returned.
          like: tree of arrays, or of `jax.ShapeDtypeStruct` with shardings, on any devices. Leaves
            that only the snapshot has are left out.

        Returns:
          The tree, with the shardings of `like`.

        Raises:
          StoreError: there is no such snapshot, it is damaged, or it does not fit `like`. If one
            process raises it, all do.
          MismatchError: the processes ask for different steps.
          TypeError, ValueError: an argument, or a leaf of `like`, is wrong.
        """
        if (found := self._read("restore", like, step)) is None:
            raise errors.StoreError(
                f"{self._names.where!r} has no valid snapshot of step {step}: latest() returns the"
                " newest"
            )
        return found.tree

    def restore_latest(self, like: Any) -> tuple[int, Any] | None:
        """Reads the newest snapshot that is valid and undamaged.

        A damaged snapshot is reported to the logger `jax_cxl`, and an older snapshot is read.

        Args:
          like: as for `restore`.

        Returns:
          Its step and the tree; None if there is no snapshot.

        Raises:
          StoreError: all snapshots are damaged, or the newest undamaged one does not fit `like`.
          TypeError: a leaf of `like` is wrong.
        """
        with contextlib.suppress(opening.AbsentError):
            found = self._read("restore_latest", like)
            return (found.version, found.tree) if found else None
        return None

    def close(self) -> None:
        """Waits until this process has written its part of the last save."""
        self._publisher.close()

    @property
    def _publisher(self) -> Publisher:
        publisher = self._names.known(NAME)
        assert publisher is not None
        return publisher

    def _look(self, make: bool = False) -> Publisher:
        """Returns the publisher. Looks again if there were no snapshots; `make` makes them."""
        return self._names.found(NAME, functools.partial(self._section, make))

    def _read(self, operation: str, like: Any, step: int | None = None) -> Version | None:
        """Reads a snapshot on all processes; returns None if there is none."""
        problem: Exception | None = None
        try:
            wanted = following.Wanted(rebuilding.wanted(like), None, None, 0, None, together=True)
            if operation == "restore":
                step = arguments.number("step", step)
                operation = f"restore({step})"
        except (TypeError, ValueError) as error:
            problem = error
        publisher = self._names.agreed(NAME, self._section, operation, problem)
        return publishing.restore(
            publisher, functools.partial(following.build, wanted=wanted), step
        )

    def _section(self, make: bool = False) -> Section:
        """Returns the section of the snapshots. If there is none, makes it or raises."""
        where, keep = self._names.where, self._keep
        arguments.check_where(where)
        arguments.check_keep(keep)
        arguments.check_parity(self._parity)
        devices = self._names.made() if make else self._names.devices()
        found = catalog.entries(devices)
        entry = next((entry for entry in found if entry.name == NAME), None)
        if entry is None and found:
            raise errors.StoreError(
                f"{where!r} holds a store with other names: give the snapshots a place of their own"
            )
        if entry is None and not make:
            raise opening.AbsentError(f"there are no snapshots in {where!r} yet: save some first")
        if entry is None:
            # If another process was faster, this returns the section that it made.
            least = catalog.geometry_for(devices, keep).bytes_for(1)
            size = max(least, catalog.free_bytes(devices))
            entry = catalog.create(devices, NAME, keep, size)
        if entry.keep != keep:
            raise errors.StoreError(
                f"{where!r} cannot hold these snapshots: it was made with keep={entry.keep}, not"
                f" keep={keep}. Name another place, or clear this one by `python -m jax_cxl store"
                " format`"
            )
        return Section(devices, entry, "snapshot")
