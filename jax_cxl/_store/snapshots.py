"""Training state in memory that outlives the hosts."""

from collections.abc import Callable
from typing import Any, Self

from jax_cxl import errors
from jax_cxl._store import agreement, arguments, recovery
from jax_cxl._store.memory import catalog, layout, opening
from jax_cxl._store.memory.section import Section
from jax_cxl._store.reading import rebuilding, repair
from jax_cxl._store.reading.restoring import Reader
from jax_cxl._store.trees import flatten, pytrees, sizes
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
    an error. Then nothing has been saved, and they may save again. docs/snapshots.md says more.
    """

    def __init__(self, where: str, *, keep: int = 2, parity: int = 0) -> None:
        """Opens the memory. If it is new, the first `save` prepares it.

        Args:
          where: URI of the memory (docs/snapshots.md): `file:/path?size=1GiB`,
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
        self._where, self._keep, self._parity = where, keep, parity
        self._absent = True  # whether there were no snapshots when the memory was last opened
        self._publisher = self._look()

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
        arguments.check_numbers(keep, parity)
        arguments.check_paths(parity, paths)
        geometry = layout.Geometry(keep, parity, paths, 0, 0)
        flat = flatten.Flattener(whole=False).flatten(tree, tuple(agreement.processes()))
        needed = sizes.section_bytes(flat.description, flat.values, geometry)
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
        self._look(make=True).save(_step(step), tree, copy=copy)

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
        publisher = self._agree("latest")
        return None if publisher is None else publisher.newest_version

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
        problem: Exception | None = None
        try:
            wanted = rebuilding.wanted(like)
            step = arguments.step(step)
        except (TypeError, ValueError) as error:
            problem = error
        operation = f"restore({step!r})" if problem is None else "restore"
        publisher = self._look()
        publisher.agree(operation, problem)
        found = recovery.restore(publisher, _rebuild(wanted), step)
        if found is None:
            raise errors.StoreError(
                f"{self._where!r} has no valid snapshot of step {step}: latest() returns the newest"
            )
        return found[1]

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
        problem: Exception | None = None
        try:
            wanted = rebuilding.wanted(like)
        except (TypeError, ValueError) as error:
            problem = error
        publisher = self._agree("restore_latest", problem)
        return None if publisher is None else recovery.restore(publisher, _rebuild(wanted))

    def repair(self) -> int:
        """Restores lost paths and damaged blocks from parity.

        Call it after a lost path has been replaced by an empty file or device. A file that was
        removed is created again. After the repair, the memory can lose another path. The processes
        of the job share the work. Nothing is written if nothing is damaged.

        Returns:
          How many blocks and records were written, by all processes.

        Raises:
          StoreError: there is no parity, or a snapshot is too damaged for parity. The other
            snapshots have then been repaired.
        """
        publisher = self._look()
        together = publisher.agree("repair")
        problem: Exception | None = None
        old = publisher.section
        try:
            # The lost path may be a new file by now, so open the memory again.
            publisher.section = _open(
                self._where, old.geometry.keep, old.geometry.parity, repair=True
            )
        except Exception as error:
            problem = error
        publisher.claim(together, problem)
        publisher.replace_agreement(together)
        section = publisher.section
        writers = together.writers
        done = repair.repair(
            section.devices, [section], together.own, len(writers), agreement.gather
        )
        if done.damaged:
            raise errors.StoreError(
                f"{self._where!r}: more is damaged than parity can mend: {', '.join(done.damaged)}."
                " Restore an older snapshot or a checkpoint, and save again"
            )
        return sum(written for (written,) in agreement.gather([done.written]))

    def close(self) -> None:
        """Waits until this process has written its part of the last save."""
        self._publisher.close()

    def _agree(self, operation: str, problem: Exception | None = None) -> Publisher | None:
        """Returns the publisher when all processes have agreed; None if there are no snapshots."""
        publisher = self._look()
        try:
            publisher.agree(operation, problem)
        except opening.AbsentError as error:
            error.__traceback__ = None  # It would keep this object, and so the memory.
            return None
        return publisher

    def _look(self, make: bool = False) -> Publisher:
        """Returns the publisher. Opens the memory if there were no snapshots at the last call.

        Args:
          make: whether to prepare new memory.
        """
        if not self._absent:
            return self._publisher
        section: Section | None = None
        problem: Exception | None = None
        self._absent = False
        try:
            arguments.check_layout(self._where, self._keep, self._parity)
            section = _open(self._where, self._keep, self._parity, existing=not make)
        except opening.AbsentError as error:
            # The tracebacks of `error` and its cause would keep this object, and so the memory.
            self._absent, problem = True, opening.AbsentError(str(error))
        except Exception as error:
            if not agreement.is_connected():
                raise
            problem = error
        self._publisher = Publisher(section, problem, shared=False, advice=_advice(section))
        return self._publisher


def _rebuild(wanted: rebuilding.Wanted) -> Callable[[Reader], Any]:
    """Returns a function that reads a tree from a snapshot."""

    def read(reader: Reader) -> Any:
        own = agreement.own()
        tree = rebuilding.rebuild(wanted, reader, agreement.processes(), own)
        return pytrees.ready(tree)

    return read


def _step(step: Any) -> int:
    """Returns the step. Refuses None, which in a store stands for the next version."""
    if step is None:
        raise TypeError("step=None must be an int, not NoneType")
    number: int = step
    return number


def _advice(section: Section | None) -> Callable[[int], str]:
    """Returns a function that says, for a needed size, how large the memory must be."""
    if section is None:
        return str
    per_path = opening.spec_of(section.devices.where).devices_per_path
    has = section.devices.core.device_bytes * per_path

    def text(needed: int) -> str:
        size = (layout.SECTIONS_OFFSET + needed) * per_path
        return f"each path needs {size} bytes and has {has}; name a place with size={size} or more"

    return text


def _open(
    where: str, keep: int, parity: int, *, existing: bool = False, repair: bool = False
) -> Section:
    """Opens the section of the snapshots. In new memory, makes it first, unless `existing`."""
    least = layout.Geometry(keep, 0, 1, 0, 0).bytes_for(1)
    devices = opening.open_devices(where, parity, existing=existing, repair=repair, least=least)
    found = catalog.entries(devices)
    entry = next((entry for entry in found if entry.name == NAME), None)
    if entry is None:
        if found:
            raise errors.StoreError(
                f"{where!r} holds a store with other names: give the snapshots a place of their own"
            )
        if existing:
            raise opening.AbsentError(f"there are no snapshots in {where!r} yet: save some first")
        # If another process was faster, this returns the section that it made.
        entry = catalog.create(devices, NAME, keep, None)
    if entry.keep != keep:
        raise errors.StoreError(
            f"{where!r} cannot hold these snapshots: it was made with keep={entry.keep}, not"
            f" keep={keep}. Name another place, or clear this one by `python -m jax_cxl store"
            " format`"
        )
    return Section(devices, entry, "snapshot")
