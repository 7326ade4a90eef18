"""Training state in memory that outlives the hosts."""

import concurrent.futures
import json
import logging
import secrets
import zlib
from collections.abc import Sequence
from typing import Any, Self

import jax

from jax_cxl import _compat, errors
from jax_cxl._snapshots import (
    agreement,
    arguments,
    fence,
    flatten,
    layout,
    memory,
    rebuilding,
    repair,
    replicas,
    restoring,
    saving,
    sizes,
    validity,
)
from jax_cxl._snapshots.save_agreement import SaveAgreement


class Snapshots:
    """Training state in a memory pool. It stays there when hosts fail, and when the job ends.

    `save` writes a tree of arrays while the program runs. After a failure `restore` reads it back,
    on any number of processes, with any sharding. Nothing is read from a disk.

    The last `keep` snapshots stay. While a snapshot is saved, the previous snapshot stays valid.
    Each process writes the shards of its own devices. Replicated arrays are stored once, and their
    devices share the work. A snapshot becomes valid for all processes at one instant, when the last
    process has written its part. All data are checked by checksums before they are used.

    All processes of the job call `save`, `latest`, `restore` and `restore_latest` at the same
    places of the program, as they do collectives. An error of one process is an error on all: then
    nothing has been saved, and they may save again. docs/snapshots.md says more.
    """

    def __init__(self, where: str, *, keep: int = 2, parity: int = 0) -> None:
        """Opens the memory, and prepares it if it is new.

        Args:
          where: URI of the memory (docs/snapshots.md): `file:/path?size=1GiB`,
            `dax:/dev/dax0.0?offset=2MiB`, or `shm:NAME?size=1GiB` to try it on one machine, where
            it outlives processes but not the machine. `size` is the size of each path;
            `bytes_needed` returns how large it must be. Several paths share the load.
          keep: how many snapshots stay, at least 2. Each snapshot takes its own memory.
          parity: 1 spreads each snapshot so that any one path may be lost. This takes the space of
            one path.

        Raises:
          PoolError: the memory cannot be opened.
          SnapshotError: it holds something else, or snapshots with other `keep` or `parity`.
          CxlError: the package xxhash is missing.
          TypeError, ValueError: an argument is wrong.

        In a job of several processes the first operation raises these errors, on all processes.

        Example:
          >>> snapshots = jax_cxl.Snapshots("shm:my_run?size=64MiB")
          >>> found = snapshots.restore_latest(state)
          >>> step, state = found or (0, state)
          >>> snapshots.save(step, state)
        """
        self._problem: Exception | None = None
        try:
            arguments.check_layout(where, keep, parity)
            self._memory = memory.open_memory(where, keep, parity)
        except Exception as error:
            if _compat.process_count() == 1:
                raise
            self._problem = error
        self._threads = concurrent.futures.ThreadPoolExecutor(1, "jax_cxl snapshots")
        self._flattener = flatten.Flattener()
        self._selection: tuple[Any, saving.Selection] | None = None
        self._saving: concurrent.futures.Future[None] | None = None
        self._agreement: SaveAgreement | None = None
        self._step = -1  # step of the last save
        self._overtaken: fence.OvertakenError | None = None  # why this job saves no more
        self._last = 0  # number of the last save that a process may have begun
        self._agreed = 0  # value of _last when the processes agreed
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

        Raises:
          TypeError, ValueError: an argument is wrong, or a leaf of the tree, as for `save`.
        """
        arguments.check_numbers(keep, parity)
        arguments.check_paths(parity, paths)
        geometry = layout.Geometry(keep, parity, paths, 0)
        flat = flatten.Flattener().flatten(tree, tuple(agreement.processes()))
        return sizes.device_bytes(flat.description, flat.values, geometry)

    def save(self, step: int, tree: Any, *, copy: bool = True) -> None:
        """Saves a tree while the program continues.

        It first waits until the previous save is valid. So a failure loses at most the last two
        trees that were given to `save`, and only the last tree if that `save` has returned. It also
        waits until all processes have called it, and compares what they save.

        Arrays may be donated to the next program. On CPUs `save` returns when their values have
        been computed. Until they have been saved, a program to which they are donated gets other
        memory for its results. On GPUs `save` copies the arrays within the GPU's memory, and
        returns before their values have been computed.

        Args:
          step: a number that `latest` returns, at least 0, and greater than that of the previous
            save, unless `latest` or `restore` has been called since.
          tree: arrays of JAX or NumPy, bool, int, float, str, None. Of arrays of NumPy, and of
            arrays on devices of one process, each process saves its own. All else must be the same
            on all processes.
          copy: False leaves out the copy within a GPU's memory. Then JAX raises an error if the
            arrays are donated before `wait` has returned.

        Raises:
          MismatchError: the processes save different trees, steps or Python values. It names the
            first leaf that differs.
          PoolTooSmallError: the memory is too small. The message has the size that is needed.
          SnapshotError: another process cannot save. Or another job has begun to save to the same
            place, or a file was deleted or replaced: then this job saves no more.
          PeerLostError, CollectiveTimeoutError, PoolError: as `wait`, for the previous save, or
            another process does not save.
          TypeError, ValueError: a leaf or an argument is wrong.

        After an error nothing of this tree has been written.
        """
        together = self._agreement or self._agree("save")
        try:
            together.meet()
            self._wait(together, None)
            problem: Exception | None = None
            try:
                self._memory.check_paths()
                step = arguments.step(step)
                arguments.check_grows(step, self._step)
                arguments.check_bool("copy", copy)
                flat = self._flattener.flatten(tree, together.writers)
                # Arrays must be usable before the others are told so.
                flatten.wait_for_values(flat)
            except Exception as error:
                problem = error
            if self._memory.claim is None:
                self._claim(together, problem)
            elif problem is not None:
                raise problem
            number = self._next_number()
            description = together.agree(flat, step, number)
            self._check_room(sizes.device_bytes(description, flat.values, self._memory.geometry))
            flat = flatten.Flat(description, flat.arrays, flat.values)
            parts, copies = self._select(flat, together.own).hold(flat, copy)
        except Exception as error:
            self._give_up(together, error)
            raise
        self._last, self._step = number, step
        work = saving.Save(
            self._memory,
            number,
            together.token,
            step,
            description,
            flat.values,
            together.own,
            parts,
            copies,
        )
        self._saving = self._threads.submit(work.run)

    def wait(self, timeout: float | None = None) -> None:
        """Waits until the last save is a valid snapshot.

        Args:
          timeout: seconds, by default `JAX_CXL_TIMEOUT`.

        Raises:
          CollectiveTimeoutError: another process has not written its part in time.
          PeerLostError: another process has ended before it wrote its part.
          MismatchError: the copies of a replicated array differ. The snapshot is not valid.
          PoolError: this process could not write its part.
          SnapshotError: another process could not write its part.
          TypeError, ValueError: `timeout` is not a number of seconds.
        """
        timeout = arguments.timeout(timeout)
        if self._saving is None:
            return
        if self._agreement is None:
            self._saving.result()
            raise errors.SnapshotError(
                f"the save of step {self._step} has failed, as an earlier error said"
            )
        try:
            self._wait(self._agreement, timeout)
        except errors.CollectiveTimeoutError:
            raise
        except Exception as error:
            self._give_up(self._agreement, error)
            raise

    def _wait(self, together: SaveAgreement, timeout: float | None) -> None:
        if self._saving is None:
            return
        self._saving.result()
        together.wait(self._not_written, timeout, "written their parts of a snapshot")
        records = validity.complete(self._memory, self._last)
        if records and (columns := replicas.differing(records)):
            raise errors.MismatchError(
                f"the snapshot of step {records[0].step} is not valid: the devices that hold a"
                f" replicated array have different values: {self._names(columns)}. Make the values"
                " equal, or save what differs as an array of each process's own devices"
            )
        self._saving = None

    def _names(self, columns: list[int]) -> str:
        """Returns the names of the leaves whose copies differ."""
        assert self._selection is not None
        found = replicas.names(self._selection[0].leaves, columns)
        return found[0] if len(found) == 1 else f"one of {', '.join(found[:8])}"

    def _not_written(self) -> Sequence[int]:
        """Returns the processes that have not written their parts of the last save."""
        if validity.complete(self._memory, self._last):
            return []
        assert self._agreement is not None
        return [
            process
            for writer, process in enumerate(self._agreement.writers)
            if not self._has_written(writer)
        ]

    def _give_up(self, together: SaveAgreement, error: Exception) -> None:
        """Tells the others why this process cannot save. All agree again before the next save."""
        if isinstance(error, fence.OvertakenError):
            self._overtaken = error
        together.fail(error)
        self._agreement = None

    def _check_room(self, needed: int) -> None:
        geometry = self._memory.geometry
        if needed > geometry.device_bytes:
            per_path = memory.spec_of(self._memory.where).devices_per_path
            raise errors.PoolTooSmallError(
                f"{self._memory.where!r} is too small for this tree: each path needs"
                f" {needed * per_path} bytes and has {geometry.device_bytes * per_path}; name a"
                f" place with size={needed * per_path} or more"
            )

    def _select(self, flat: flatten.Flat, own: int) -> saving.Selection:
        if self._selection is None or self._selection[0] is not flat.description:
            placement = flat.description.placement(self._memory.geometry.blocks_per_row)
            self._selection = flat.description, saving.Selection(flat, placement, own)
        return self._selection[1]

    def latest(self) -> int | None:
        """Returns the step of the newest valid snapshot, None if there is none.

        Processes that replace lost ones call it together with the survivors.
        """
        self._agree("latest")
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
          MismatchError: the processes ask for different steps.
          TypeError, ValueError: an argument, or a leaf of `like`, is wrong.
        """
        problem: Exception | None = None
        try:
            wanted = rebuilding.wanted(like)
            step = arguments.step(step)
        except (TypeError, ValueError) as error:
            problem = error
        self._agree(f"restore({step!r})" if problem is None else "restore", problem)
        for records in validity.all_valid(self._memory, self._last):
            if records[0].step == step:
                return self._restore(records, wanted)
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
          TypeError: a leaf of `like` is wrong.
        """
        problem: Exception | None = None
        try:
            wanted = rebuilding.wanted(like)
        except (TypeError, ValueError) as error:
            problem = error
        self._agree("restore_latest", problem)
        problem = None
        for records in validity.all_valid(self._memory, self._last):
            try:
                return records[0].step, self._restore(records, wanted)
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
        together = self._agree("repair")
        problem: Exception | None = None
        geometry = self._memory.geometry
        try:
            # The lost path may be another file by now.
            self._memory = memory.open_memory(
                self._memory.where, geometry.keep, geometry.parity, repair=True
            )
        except Exception as error:
            problem = error
        self._claim(together, problem)
        writers, own = together.writers, together.own
        self._agreement = SaveAgreement(self._memory, together.token, writers, own)
        done = repair.repair(self._memory, self._last, own, len(writers), agreement.gather)
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

    def _restore(self, records: list[layout.Record], wanted: rebuilding.Wanted) -> Any:
        """Restores on all processes, or raises on all."""
        problem: Exception | None = None
        tree = None
        writers = agreement.processes()
        try:
            reader = restoring.Reader(self._memory, records)
            own = jax.process_index()
            tree = jax.block_until_ready(rebuilding.rebuild(wanted, reader, writers, own))
        except Exception as error:
            problem = error
        # A damaged snapshot is not the end of restore_latest. Other errors are.
        kind = 0 if problem is None else 2 - isinstance(problem, errors.SnapshotError)
        kinds = [kind for (kind,) in agreement.gather([kind])]
        if any(kinds):
            texts = agreement.gather_bytes(_in_words(problem).encode())
            worst = kinds.index(max(kinds))
            if problem is not None and kind == max(kinds):
                raise problem
            make = errors.SnapshotError if max(kinds) == 1 else errors.CxlError
            raise make(
                f"process {writers[worst]} could not restore the snapshot:"
                f" {texts[worst].decode(errors='replace')}"
            ) from problem
        self._base = records[0].number
        return tree

    def _next_number(self) -> int:
        """Returns the number of the next save."""
        claim = self._memory.claim
        assert claim is not None
        if self._last == self._agreed:
            return claim.first
        return claim.next(self._last, self._memory.geometry.areas)

    def _claim(self, together: SaveAgreement, problem: Exception | None = None) -> None:
        """Claims the memory for this job, on all processes or on none.

        Args:
          together: what the processes have agreed on.
          problem: why this process cannot use the memory.
        """
        texts = agreement.gather_bytes(_in_words(problem).encode())
        if problem is not None:
            raise problem
        for process, text in zip(together.writers, texts, strict=True):
            if text:
                what = text.decode(errors="replace")
                raise errors.SnapshotError(f"process {process} could not save: {what}")
        claim = None
        if together.own == 0:
            try:
                state = self._incarnation, together.token, self._last, self._base
                claim = fence.take(self._memory, *state)
            except errors.PoolError as error:
                problem = error
        fields = (claim.incarnation, claim.first, claim.retired, claim.slot) if claim else (0,) * 4
        overtaken = isinstance(problem, fence.OvertakenError)
        is_overtaken, incarnation, first, retired, slot = agreement.gather((overtaken, *fields))[0]
        if not incarnation:
            make = fence.OvertakenError if is_overtaken else errors.SnapshotError
            raise problem or make(
                f"process {together.writers[0]} could not claim {self._memory.where!r}: see its"
                " error"
            )
        self._memory.claim = fence.Claim(incarnation, together.token, first, retired, slot)

    def _has_written(self, writer: int) -> bool:
        record = self._memory.record(self._last, writer)
        token = self._agreement.token if self._agreement else 0
        return record is not None and (record.number, record.token) == (self._last, token)

    def _agree(self, operation: str, problem: Exception | None = None) -> SaveAgreement:
        """All processes agree on a token and on the number of the last save, or all raise.

        Afterwards no process writes until it calls `save` again.

        Args:
          operation: what this process does, in which all processes must agree.
          problem: why this process cannot do it.
        """
        if operation != "save":
            self._overtaken = None
        problem = self._problem or self._overtaken or problem
        if self._saving is not None:
            self._saving.exception()
            self._saving = None
        if operation != "save":
            self._step = -1
        fresh = self._last == self._agreed  # nothing has been saved since a restore
        last, geometry = self._last, None
        if self._problem is None:
            geometry = self._memory.geometry
            # A process that was lost may have begun a save that no other process has.
            last = max(last, validity.last_number(self._memory))
        words = json.dumps([operation, str(geometry), _in_words(problem)]).encode()
        claimed = fence.newest(self._memory) if self._problem is None else 0
        told = agreement.gather([last, secrets.randbits(63) | 1, claimed, zlib.crc32(words)])
        writers = tuple(agreement.processes())
        if problem is not None or len({words for *_, words in told}) > 1:
            _raise_disagreement(agreement.gather_bytes(words), writers, problem)
        lasts, tokens, claims, _ = zip(*told, strict=True)
        self._last = self._agreed = max(lasts)
        self._incarnation, self._memory.claim = max(claims), None
        found = validity.all_valid(self._memory, self._last)
        if operation != "save" or not fresh or not self._base:
            self._base = found[0][0].number if found else 0
        valid = json.dumps([(r[0].number, r[0].token, r[0].step) for r in found]).encode()
        if len({words for (words,) in agreement.gather([zlib.crc32(valid)])}) > 1:
            raise errors.SnapshotError(
                f"the processes find different snapshots in {self._memory.where!r}: name the same"
                " memory on all processes"
            )
        own = writers.index(jax.process_index())
        self._agreement = SaveAgreement(self._memory, max(tokens), writers, own)
        return self._agreement


def _in_words(problem: Exception | None) -> str:
    return f"{type(problem).__name__}: {problem}" if problem is not None else ""


def _raise_disagreement(
    texts: Sequence[bytes], writers: Sequence[int], problem: Exception | None
) -> None:
    """Raises the error for processes of which one cannot go on, or does something else."""
    told = [json.loads(text) for text in texts]
    if problem is not None:
        raise problem
    for process, (operation, _, text) in zip(writers, told, strict=True):
        if text:
            raise errors.SnapshotError(f"process {process} cannot {operation}: {text}")
    other = next(number for number, of in enumerate(told) if of != told[0])
    sides = [told[0][:2], told[other][:2]]
    field = 0 if sides[0][0] != sides[1][0] else 1
    what = "call different operations of Snapshots" if field == 0 else "have different memory"
    raise agreement.mismatch(writers, (0, other), [side[field] for side in sides], what)
