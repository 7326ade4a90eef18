"""Training state in memory that outlives the hosts."""

import concurrent.futures
import logging
import operator
import secrets
import time
from typing import Any, Self

import jax

from jax_cxl import errors
from jax_cxl._runtime import configuration
from jax_cxl._snapshots import (
    agreement,
    fence,
    flatten,
    layout,
    memory,
    repair,
    restoring,
    saving,
    sizes,
    validity,
)

_POLL_SECONDS = 0.0005


class Snapshots:
    """Training state in a memory pool. It stays there when hosts fail, and when the job ends.

    `save` writes a tree of arrays while the program runs. After a failure `restore` reads it back,
    on any number of processes, with any sharding. Nothing is read from a disk.

    The last `keep` snapshots stay. While a snapshot is saved, the previous snapshot stays valid.
    Each process writes the shards of its own devices. Replicated arrays are stored once, and their
    devices share the work. A snapshot becomes valid for all processes at one instant, when the last
    process has written its part. All data are checked by checksums before they are used.

    All processes of the job call `save`, `latest`, `restore` and `restore_latest` at the same
    places of the program, as they do collectives. docs/snapshots.md says more.
    """

    def __init__(self, where: str, *, keep: int = 2, parity: int = 0) -> None:
        """Opens the memory, and prepares it if it is new.

        Args:
          where: URI of the memory (docs/snapshots.md): `file:/path?size=1GiB`,
            `dax:/dev/dax0.0?offset=2MiB`, or `shm:NAME?size=1GiB` to try it on one machine, where
            it outlives processes but not the machine. `size` is the size of each path;
            `bytes_needed` returns how large it must be. Several paths share the load.
          keep: how many snapshots stay, at least 2. Each one takes its own memory.
          parity: 1 spreads each snapshot so that any one path may be lost. This takes the space of
            one path.

        Raises:
          PoolError: the memory cannot be opened.
          SnapshotError: it holds something else, or snapshots with other `keep` or `parity`.
          CxlError: the package xxhash is missing.

        Example:
          >>> snapshots = jax_cxl.Snapshots("shm:my_run?size=64MiB")
          >>> found = snapshots.restore_latest(state)
          >>> step, state = found or (0, state)
          >>> snapshots.save(step, state)
        """
        self._memory = memory.open_memory(where, keep, parity)
        self._threads = concurrent.futures.ThreadPoolExecutor(1, "jax_cxl snapshots")
        self._saving: concurrent.futures.Future[None] | None = None
        self._token = 0  # 0: the processes have not agreed on a token yet
        self._writers: tuple[int, ...] = ()
        self._last = 0  # number of the last save that a process may have begun
        self._incarnation = 0  # last claim of the memory when the processes agreed
        self._base = 0  # number of the snapshot from which they have continued; 0: none

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @staticmethod
    def bytes_needed(tree: Any, *, keep: int = 2, parity: int = 0, paths: int = 1) -> int:
        """Returns which `size` each path must have for snapshots of such a tree, in bytes.

        Args:
          tree: as for `save`.
          keep: as for `Snapshots`.
          parity: as for `Snapshots`.
          paths: how many paths `where` has.
        """
        geometry = layout.Geometry(keep, parity, paths, 0)
        writers = tuple(agreement.processes())
        described = [source.leaf for source in flatten.sources(tree, writers)]
        return sizes.place(described, writers, geometry)[1]

    def save(self, step: int, tree: Any, *, copy: bool = True) -> None:
        """Saves a tree while the program continues.

        It first waits until the previous save is valid. So a failure loses at most the last two
        trees that were given to `save`, and only the last tree if that `save` has returned.

        Arrays may be donated to the next program. On CPUs `save` returns when their values have
        been computed. Until they have been saved, a program to which they are donated gets other
        memory for its results. On GPUs `save` copies the arrays within the GPU's memory, and
        returns before their values have been computed.

        Args:
          step: a number that `latest` returns, at least 0.
          tree: arrays of JAX or NumPy, bool, int, float, str, None. Of arrays of NumPy and Python
            values, those of the first process are saved.
          copy: False leaves out the copy within a GPU's memory. Then JAX raises an error if the
            arrays are donated before `wait` has returned.

        Raises:
          PoolTooSmallError: the memory is too small. The message has the size that is needed.
            Nothing has been changed.
          SnapshotError: another job has begun to save to the same place, or a file was deleted or
            replaced. This job saves no more.
          PeerLostError, CollectiveTimeoutError, PoolError: as `wait`, for the previous save.
          TypeError: a leaf is something else.
        """
        step = operator.index(step)
        if not 0 <= step < 1 << 63:
            raise ValueError(f"step={step} must be at least 0, and less than 2**63")
        self.wait()
        self._memory.check_paths()
        if not self._token:
            self._agree()
        found = flatten.sources(tree, self._writers)
        described = [source.leaf for source in found]
        geometry = self._memory.geometry
        placement, needed = sizes.place(described, self._writers, geometry)
        if needed > geometry.device_bytes:
            per_path = memory.spec_of(self._memory.where).devices_per_path
            raise errors.PoolTooSmallError(
                f"{self._memory.where!r} is too small for this tree: each path needs"
                f" {needed * per_path} bytes and has {geometry.device_bytes * per_path}; name a"
                f" place with size={needed * per_path} or more"
            )
        number = self._last = self._next_number()
        own = self._writers.index(jax.process_index())
        on_cpu = [x for x in (source.array for source in found) if _is_on_cpu(x)]
        jax.block_until_ready(on_cpu)
        work = saving.Save(
            self._memory,
            number,
            self._token,
            step,
            self._writers,
            own,
            placement,
            described,
            saving.own_parts(placement, found, own, copy),
        )
        self._saving = self._threads.submit(work.run)

    def wait(self, timeout: float | None = None) -> None:
        """Waits until the last save is a valid snapshot.

        Args:
          timeout: seconds, by default `JAX_CXL_TIMEOUT`.

        Raises:
          CollectiveTimeoutError: another process has not written its part in time.
          PeerLostError: another process has ended before it wrote its part.
          PoolError: this process could not write its part.
        """
        if self._saving is None:
            return
        seconds = configuration.from_environment().timeout if timeout is None else timeout
        end = time.monotonic() + seconds
        self._saving.result()
        while validity.snapshot(self._memory, self._last) is None:
            missing = [
                process
                for writer, process in enumerate(self._writers)
                if not self._has_written(writer)
            ]
            if missing and (lost := agreement.lost_rank(missing)) is not None:
                error = errors.PeerLostError(
                    f"rank {lost} was lost before it had written its part of a snapshot"
                )
                error.rank = lost
                raise error
            if time.monotonic() > end:
                raise errors.CollectiveTimeoutError(
                    f"processes {missing} have not written their parts of a snapshot within"
                    f" {seconds:g} s"
                )
            time.sleep(_POLL_SECONDS)

    def latest(self) -> int | None:
        """Returns the step of the newest valid snapshot, None if there is none.

        Processes that replace lost ones call it together with the survivors.
        """
        self._agree()
        found = validity.all_valid(self._memory, self._last)
        return found[0][0].step if found else None

    def restore(self, step: int, like: Any) -> Any:
        """Reads the snapshot of a step.

        Args:
          step: step of a valid snapshot, for example the step that `latest` returned.
          like: tree of arrays, or of `jax.ShapeDtypeStruct` with shardings, on any devices. Leaves
            that only the snapshot has are left out.

        Returns:
          The tree, with the shardings of `like`.

        Raises:
          SnapshotError: there is no such snapshot, it is damaged, or it does not fit `like`. It is
            raised on all processes if it is on one.
        """
        self._agree()
        for records in validity.all_valid(self._memory, self._last):
            if records[0].step == step:
                return self._restore(records, like)
        raise errors.SnapshotError(f"{self._memory.where!r} has no valid snapshot of step {step}")

    def restore_latest(self, like: Any) -> tuple[int, Any] | None:
        """Reads the newest snapshot that is valid and undamaged.

        A damaged snapshot is reported to the logger `jax_cxl`, and an older snapshot is read.

        Args:
          like: as for `restore`.

        Returns:
          Its step and the tree; None if there is no snapshot.

        Raises:
          SnapshotError: all snapshots are damaged, or do not fit `like`.
        """
        self._agree()
        problem = None
        for records in validity.all_valid(self._memory, self._last):
            try:
                return records[0].step, self._restore(records, like)
            except errors.SnapshotError as error:
                problem = error
                logging.getLogger("jax_cxl").warning(
                    "the snapshot of step %d is not used: %s", records[0].step, error
                )
        if problem is not None:
            raise problem
        return None

    def repair(self) -> int:
        """Restores lost paths and damaged blocks from parity.

        Call it after a lost path has been replaced by an empty file or device, or removed. Once it
        has returned, the memory can lose another path. The processes of the job share the work.
        Nothing is written if nothing is damaged.

        Returns:
          How many blocks and records were written, by all processes.

        Raises:
          SnapshotError: there is no parity, or a snapshot is too damaged for parity. The other
            snapshots have then been repaired.
        """
        self._agree()
        # The lost path may be another file by now.
        geometry = self._memory.geometry
        self._memory = memory.open_memory(
            self._memory.where, geometry.keep, geometry.parity, repair=True
        )
        self._claim()
        own = self._writers.index(jax.process_index())
        done = repair.repair(self._memory, self._last, own, len(self._writers), agreement.gather)
        if done.damaged:
            raise errors.SnapshotError(
                f"{self._memory.where!r}: the snapshots of steps {list(done.damaged)} are damaged,"
                " more than parity can mend"
            )
        return sum(written for (written,) in agreement.gather([done.written]))

    def close(self) -> None:
        """Waits until this process has written its part of the last save."""
        try:
            if self._saving is not None:
                self._saving.result()
        finally:
            self._threads.shutdown()

    def _restore(self, records: list[Any], like: Any) -> Any:
        """Restores on all processes, or raises on all."""
        problem: errors.SnapshotError | None = None
        tree = None
        try:
            reader = restoring.Reader(self._memory, records)
            tree = jax.block_until_ready(flatten.rebuild(like, reader.leaves, reader.read))
        except errors.SnapshotError as error:
            problem = error
        failed = [failed for (failed,) in agreement.gather([problem is not None])]
        if problem is not None:
            raise problem
        if any(failed):
            process = self._writers[failed.index(1)]
            raise errors.SnapshotError(f"process {process} could not restore the snapshot")
        self._base = records[0].number
        return tree

    def _next_number(self) -> int:
        """Returns the number of the next save. Before its first save the job claims the memory."""
        if self._memory.claim is not None:
            return self._memory.claim.next(self._last, self._memory.geometry.areas)
        return self._claim().first

    def _claim(self) -> fence.Claim:
        """Claims the memory for this job, on all processes or on none."""
        claim, problem = None, None
        if self._writers[0] == jax.process_index():
            try:
                arguments = self._incarnation, self._token, self._last, self._base
                claim = fence.take(self._memory, *arguments)
            except errors.SnapshotError as error:
                problem = error
        own = (claim.incarnation, claim.first, claim.retired, claim.slot) if claim else (0, 0, 0, 0)
        incarnation, first, retired, slot = agreement.gather(own)[0]
        if not incarnation:
            raise problem or errors.SnapshotError(
                f"process {self._writers[0]} could not claim {self._memory.where!r}"
            )
        self._memory.claim = fence.Claim(incarnation, self._token, first, retired, slot)
        return self._memory.claim

    def _has_written(self, writer: int) -> bool:
        record = self._memory.record(self._last, writer)
        return record is not None and (record.number, record.token) == (self._last, self._token)

    def _agree(self) -> None:
        """All processes agree on a token, and on the number of the last save.

        Afterwards no process writes until it calls `save` again.
        """
        if self._saving is not None:
            self._saving.exception()
            self._saving = None
        # A process that was lost may have begun a save that no other process has.
        last = max(self._last, validity.last_number(self._memory))
        claimed = fence.newest(self._memory)
        told = agreement.gather([last, secrets.randbits(63) | 1, claimed])
        self._writers = tuple(agreement.processes())
        self._last, self._token, self._incarnation = map(max, *told) if told[1:] else told[0]
        self._memory.claim = None
        found = validity.all_valid(self._memory, self._last)
        self._base = found[0][0].number if found else 0


def _is_on_cpu(array: Any) -> bool:
    if not isinstance(array, jax.Array):
        return False
    devices: Any = array.sharding.device_set
    return any(device.platform == "cpu" for device in devices)
