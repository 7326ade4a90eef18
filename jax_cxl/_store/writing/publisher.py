"""Saves versions of one name, together with the other processes of the job."""

import concurrent.futures
import json
import threading
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from jax_cxl import errors
from jax_cxl._store import agreement, arguments
from jax_cxl._store.memory import layout, opening
from jax_cxl._store.memory.layout import Claim
from jax_cxl._store.memory.section import OvertakenError, Section, differing
from jax_cxl._store.trees import flatten, place, pytrees
from jax_cxl._store.trees.flatten import Description
from jax_cxl._store.writing import fence, saving, streaming
from jax_cxl._store.writing.save_agreement import SaveAgreement

Batches = TypeVar("Batches", bound=Iterable[saving.Batch])


class Publisher:
    """Saves versions of one name. `last` is the last save that a process may have begun."""

    def __init__(self, section: Section | None, problem: Exception | None = None):
        """Makes a publisher for a section, or notes the problem why it could not be opened."""
        self._section, self._problem = section, problem
        # Whether other jobs read the versions. If so, shards stay whole, so that other jobs can
        # view them, and it is an error if another living job saves under the name. If not, this job
        # takes the place of a job that saves under the name.
        self._shared = section is None or section.what == "version"
        self._lock = threading.RLock()  # held by the thread that saves or waits
        self._closed = False
        self._threads = concurrent.futures.ThreadPoolExecutor(1, "jax_cxl store")
        self._flattener = flatten.Flattener(whole=self._shared)
        # For the last tree: the description that all processes agreed on, the description of this
        # process, and what this process writes.
        self._selection: tuple[Description, Description, saving.Selection] | None = None
        self._saving: concurrent.futures.Future[None] | None = None
        self._agreement: SaveAgreement | None = None
        self._version = -1  # the last one
        self._overtaken: OvertakenError | None = None  # why this job can no longer save
        self.last = 0
        self.token = 0  # of the last save
        self._agreed = 0  # value of `last` when the processes agreed
        self._incarnation = 0  # last claim of the section when the processes agreed
        self._own_claim: Claim | None = None  # the last one that this process has written
        self._base = 0  # number of the version from which the job continues; 0: none
        self._newest = 0  # number of the newest valid version; 0: none
        self.newest_version: int | None = None  # the newest valid one when the processes agreed
        self._used = -1  # the greatest version that a job had begun to publish then; -1: none

    @property
    def section(self) -> Section:
        if self._section is None:
            assert self._problem is not None
            raise self._problem
        return self._section

    @property
    def is_absent(self) -> bool:
        """Whether there was no such name when this publisher was made."""
        return isinstance(self._problem, opening.AbsentError)

    def save(self, version: int | None, tree: Any, *, copy: bool) -> int:
        """Saves a tree while the program continues; returns the version. See `Snapshots.save`."""

        @pytrees.collector_paused()
        def flat(writers: tuple[int, ...]) -> flatten.Flat:
            arguments.check_bool("copy", copy)
            made = self._flattener.flatten(tree, writers)
            # After this, the process announces that it can save. So its arrays must be usable.
            flatten.wait_for_values(made)
            return made

        @pytrees.collector_paused()
        def batches(tree: flatten.Flat, selection: saving.Selection) -> list[saving.Batch]:
            return [selection.hold(dict(enumerate(tree.arrays)), copy)]

        with self._lock:
            self._save(version, flat, batches)
            return self._version

    def stream(
        self, version: int | None, describe: Callable[[tuple[int, ...]], flatten.Flat]
    ) -> streaming.Stream:
        """Begins to save a tree whose arrays come later, in the order of its leaves.

        `describe` returns it with a `jax.ShapeDtypeStruct` with a sharding for each array.
        """

        def batches(tree: flatten.Flat, selection: saving.Selection) -> streaming.Stream:
            return streaming.Stream(selection, len(tree.arrays), self._fail)

        with self._lock:
            stream = self._save(version, describe, batches)
            assert self._saving is not None
            self._saving.add_done_callback(stream.stop)
            return stream

    def _fail(self, error: Exception) -> None:
        """Gives up a save because of an error in the program. The caller raises the error."""
        if self._saving is not None:
            self._saving.exception()
            self._saving = None
        if self._agreement is not None:
            self._give_up(self._agreement, error)

    def _save(
        self,
        version: int | None,
        describe: Callable[[tuple[int, ...]], flatten.Flat],
        batches_of: Callable[[flatten.Flat, saving.Selection], Batches],
    ) -> Batches:
        """Saves the tree that `describe` returns; returns what `batches_of` has returned.

        This iterable may wait for its arrays while the program continues.
        """
        if self._section is not None:
            self._section.devices.check_opener()
        if self._closed:
            raise errors.StoreError(f"{self.section.text} was closed: open it again to save to it")
        together = self._agreement
        if together is None or together.is_over():
            together = self.agree("save")
        try:
            self._wait(together, None)
            section = self.section
            problem: Exception | None = None
            try:
                section.devices.check_paths()
                following = max(self._version, self._used) + 1
                version = following if version is None else version
                version = arguments.number(section.unit, version)
                arguments.check_grows(section.unit, version, self._version)
                flat = describe(together.writers)
            except Exception as error:
                problem = error
            if section.claim is None:
                self._claim(together, problem)
            elif problem is not None:
                raise problem
            assert version is not None
            description = together.agree(flat, version)
            needed = description.section_bytes(flat.values, section.geometry)
            section.check_room(needed)
            base = self._base if self.last == self._agreed else 0
            numbers = self.last, self._newest, base, version
            old, number = together.number(lambda: fence.next_number(section, *numbers))
            selection = self._select(flat, description, together.own)
            flat = flatten.Flat(description, flat.arrays, flat.values)
            batches = batches_of(flat, selection)
        except BaseException as error:  # also Ctrl-C, for which the other processes must not wait
            self._give_up(together, error)
            raise
        self.last, self.token, self._version = number, together.token, version
        work = saving.Save(
            section,
            number,
            together.token,
            version,
            description,
            flat.values,
            together.own,
            batches,
            selection.on_device,
            old,
        )
        self._saving = self._threads.submit(work.run)
        return batches

    def wait(self, timeout: float | None = None) -> None:
        """Waits until the last save is a valid version. See `Snapshots.wait`."""
        timeout = arguments.timeout(timeout)
        with self._lock:
            if self._saving is None:
                return
            self.section.devices.check_opener()
            if self._agreement is None:
                self._saving.result()
                raise errors.StoreError(
                    f"{self.section.text_of(self._version)} has failed, as an earlier error said:"
                    " save or publish again"
                )
            try:
                self._wait(self._agreement, timeout)
            except errors.CollectiveTimeoutError:
                raise
            except Exception as error:
                self._give_up(self._agreement, error)
                raise

    def close(self) -> None:
        """Waits until this process has written its part of the last save; gives up its claim."""
        if self._section is not None and self._section.devices.is_inherited:
            return  # The parent saves.
        with self._lock:
            self._closed = True
            try:
                if self._saving is not None:
                    self._saving.result()
            finally:
                self._threads.shutdown()
            claim, section = self._own_claim, self._section
            if claim and section and (not self._saving or section.complete(self.last)):
                fence.release(section, claim)

    @agreement.topic("an agreement of publishers", name="")
    def agree(self, operation: str, problem: Exception | None = None) -> SaveAgreement:
        """All processes agree on a token and on the number of the last save, or all raise.

        Afterwards no process writes until it calls `save` again. `problem` is why this process
        cannot do the operation, which is the same on all processes.
        """
        if operation != "save":
            self._overtaken = None
        problem = self._problem or self._overtaken or problem
        if self._saving is not None:
            self._saving.exception()
            self._saving = None
        if operation != "save":
            self._version = -1
        fresh = self.last == self._agreed  # nothing has been saved since a restore
        last, geometry, claimed = self.last, None, 0
        if self._section is not None:
            geometry = self._section.geometry
            # A lost process may have begun a save that no other process has begun.
            last = max(last, self._section.last_number())
            claimed = fence.newest(self._section)
        own_words = [operation, str(geometry), agreement.in_words(problem)]
        own_state = [last, layout.random_word(), claimed]
        data = json.dumps([own_words, own_state]).encode()
        words, states = zip(*map(json.loads, agreement.gather_bytes(data)), strict=True)
        writers = tuple(agreement.processes())
        agreement.check_words(words, writers, problem)
        lasts, tokens, claims = zip(*states, strict=True)
        self.last = self._agreed = max(lasts)
        section = self.section
        self._incarnation, section.claim = max(claims), None
        found = section.all_valid()[:1]
        current = section.is_current()
        # Another job may publish meanwhile, so all take what the first process has found.
        numbers = (found[0][0].number, found[0][0].version + 1) if found else (0, 0)
        # The number of a version stays used if its records were damaged.
        used = section.last_begun_version() + 1
        known = agreement.gather([section.entry.identity, current, *numbers, used])
        self._newest, newest_version = known[0][2], known[0][3] - 1
        self.newest_version = newest_version if self._newest else None
        for process, (identity, *_) in zip(writers, known, strict=True):
            if identity != known[0][0]:
                raise errors.StoreError(agreement.other_memory(section.text, writers[0], process))
        if not all(current for _, current, *_ in known):
            raise errors.StoreError(f"{section.text} was deleted: open it again")
        self.last = self._agreed = max(self.last, self._newest)
        if operation != "save" or not fresh or not self._base:
            self._base = self._newest
        if self._shared:
            self._version = max(self._version, newest_version)
            self._used = known[0][4] - 1
        own = writers.index(agreement.own())
        self._agreement = SaveAgreement(section, max(tokens), writers, own)
        return self._agreement

    @agreement.topic("a claim of a name", name="")
    def _claim(self, together: SaveAgreement, problem: Exception | None) -> None:
        """Claims the section for this job, on all processes or on none."""
        agreement.raise_first(together.writers, problem, "could not save")
        section = self.section
        fields = b""
        if together.own == 0:
            try:
                if self._shared and (who := fence.owner(section)):
                    raise fence.OwnedError(
                        f"{who} already publishes {section.text}. Only one job at a time can:"
                        " end that job, or publish under another name"
                    )
                state = self._incarnation, together.token, self.last
                self._own_claim = fence.take(section, *state)
                fields = self._own_claim.to_bytes()
            except errors.CxlError as error:
                problem = error
        told = agreement.raise_first(together.writers, problem, "could not save", fields)
        claim = section.claim = Claim.from_bytes(told[0])
        assert claim is not None
        # A later job may have overwritten the claim already. The next write notices that.
        if together.own != 0 and fence.newest(section) < claim.incarnation:
            where, first = section.text, together.writers[0]
            raise errors.StoreError(agreement.other_memory(where, first, agreement.own()))

    def continue_from(self, number: int) -> None:
        """Keeps the version with this number until the next two saves are valid."""
        self._base = number
        self._newest = max(self._newest, number)
        self.last = self._agreed = max(self.last, number)

    def _wait(self, together: SaveAgreement, timeout: float | None) -> None:
        if self._saving is None:
            return
        self._saving.result()
        records = together.wait(self.last, timeout)
        if columns := differing(records):
            assert self._selection is not None
            found = place.copied_leaves(self._selection[0].leaves, columns)
            which = found[0] if len(found) == 1 else f"one of {', '.join(found[:8])}"
            raise errors.MismatchError(
                f"{self.section.text_of(records[0].version)} is not valid, because devices that"
                f" share a replicated array hold different values: {which}. Make the"
                " values equal, or let each process save its own value in an array on its own"
                " devices"
            )
        self._saving = None
        self._newest = self.last

    def _give_up(self, together: SaveAgreement, error: BaseException) -> None:
        """Tells the others why this process cannot save. All agree again before the next save."""
        # Keep the error only if this job has claimed the name. A job that could not claim a shared
        # name may publish it once the other job has ended.
        if isinstance(error, OvertakenError) and (self.section.claim or not self._shared):
            self._overtaken = error
        together.fail(error)
        self._agreement = None

    @pytrees.collector_paused()
    def _select(self, flat: flatten.Flat, description: Description, own: int) -> saving.Selection:
        """Returns what this process writes of a tree with the agreed description."""
        last = self._selection
        if last is None or last[0] is not description or last[1] is not flat.description:
            agreed = flatten.Flat(description, flat.arrays, flat.values)
            placement = description.placement(self.section.geometry.blocks_per_row)
            selection = saving.Selection(agreed, placement, own)
            last = self._selection = description, flat.description, selection
        return last[2]
