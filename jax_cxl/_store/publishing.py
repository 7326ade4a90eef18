"""The memory of a store and the names in it, for `Store`, `Snapshots`, tables and offload."""

import contextlib
import json
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from jax_cxl import errors
from jax_cxl._store import agreement, arguments, following
from jax_cxl._store.memory import catalog, layout, opening
from jax_cxl._store.memory.devices import Devices
from jax_cxl._store.memory.layout import Records
from jax_cxl._store.memory.section import Section

if TYPE_CHECKING:
    # A process that only reads starts faster without these modules.
    from jax_cxl._store.trees import flatten
    from jax_cxl._store.writing.publisher import Publisher

Result = TypeVar("Result")
Describe = Callable[[tuple[int, ...]], "flatten.Flat"]


class Names:
    """The memory of a store, and the publishers of this job by name. Thread-safe."""

    def __init__(self, where: str, parity: int | None) -> None:
        self.where, self.parity = where, parity
        self._opening = threading.Lock()
        self._opened: Devices | None = None
        self._publishers: dict[str, Publisher] = {}
        self._making = threading.RLock()  # held by the thread that makes or deletes a name

    def devices(self, seconds: float = 0) -> Devices:
        """Returns the memory. Waits `seconds` until a job has made it, or raises AbsentError."""
        with self._opening:
            if self._opened is None:
                self._opened = opening.wait_for_devices(self.where, self.parity, seconds)
            return self._opened

    def made(self) -> Devices:
        """Returns the memory, for a call that writes. Makes the store if there is none."""
        with self._opening:
            if self._opened is None:
                self._opened = opening.open_devices(self.where, self.parity)
            return self._opened

    def known(self, name: str) -> "Publisher | None":
        """Returns the publisher of a name that this job has published."""
        return self._publishers.get(name)

    def agreed(
        self,
        name: str,
        section: Callable[[], Section],
        operation: str,
        problem: Exception | None = None,
    ) -> "Publisher":
        """Returns the publisher of a name when all processes have agreed (`Publisher.agree`)."""
        publisher = self.found(name, section)
        try:
            publisher.agree(operation, problem)
        except opening.AbsentError as error:
            # Its traceback would keep the caller, and so the memory.
            raise opening.AbsentError(str(error.with_traceback(None))) from None
        return publisher

    def section(self, name: str) -> Section:
        """Returns the section of a name that has versions, or raises an error."""
        devices = self.devices()
        section = Section.find(devices, name)
        if section is None:
            raise opening.AbsentError(str(following.absent(devices, name)))
        catalog.check_kind(devices, section.entry, 1)
        return section

    def found(self, name: str, section: Callable[[], Section]) -> "Publisher":
        """Returns the publisher of a name, without the other processes of the job.

        If `section`, which returns its section, raises an error, `Publisher.agree` raises it on all
        processes.
        """
        publisher = self._publishers.get(name)
        if publisher is None or publisher.is_absent:
            problem: Exception | None = None
            of = None
            try:
                of = section()
            except opening.AbsentError as error:
                # The tracebacks of `error` and its cause would keep the caller, and so the memory.
                problem = opening.AbsentError(str(error))
            except Exception as error:
                if not agreement.is_connected():
                    raise
                problem = error
            from jax_cxl._store.writing.publisher import Publisher

            publisher = self._publishers[name] = Publisher(of, problem)
        return publisher

    def publisher(
        self, name: str, describe: Describe, keep: int | None = None, more_blocks: int = 0
    ) -> "Publisher":
        """Returns the publisher of a name, and makes the name if it is new.

        All processes of the job call it at the same place. `describe` takes the indices of the
        processes and returns the tree. Each version of a new name may take `more_blocks` besides.
        """
        if self._opened is not None:
            self._opened.check_opener()
        with self._making:
            publisher = self._publishers.get(name) if isinstance(name, str) else None
            if publisher is None or publisher.is_absent:
                section = self._create(name, describe, keep, more_blocks)
                publisher = self.found(name, lambda: section)
        if keep is not None:
            arguments.check_keep(keep)
            section = publisher.section
            if keep != section.entry.keep:
                raise errors.StoreError(
                    f"{section.text} was made with keep={section.entry.keep}, not {keep}: delete"
                    " the name first, or leave keep out"
                )
        return publisher

    def forget(self, name: str) -> None:
        """Forgets the publisher of a name. The next call that publishes makes another."""
        if (publisher := self._publishers.pop(name, None)) is not None:
            with contextlib.suppress(Exception):  # An earlier call has raised it.
                publisher.close()

    @agreement.topic("the deletion of a name", name="")
    def delete(self, name: str) -> None:
        """Deletes a name; see `Store.delete`."""
        with self._making:
            publisher = self._publishers.pop(catalog.check_name(name), None)
            if publisher is None:
                self._delete(name)
                return
            writers = agreement.processes()
            agreement.on_all(writers, publisher.close, "could not delete")

            def delete() -> None:
                if writers[0] == agreement.own():
                    self._delete(name)

            agreement.on_all(writers, delete, "could not delete")

    def close(self) -> None:
        publishers, self._publishers = self._publishers, {}
        for publisher in publishers.values():
            publisher.close()

    def _delete(self, name: str) -> None:
        section = Section.find(self.devices(), name)
        if section is None:
            raise following.absent(self.devices(), name)
        from jax_cxl._store.writing import fence

        fence.delete(section)

    @agreement.topic("the first publish of a name", name="")
    def _create(self, name: str, describe: Describe, keep: int | None, more: int) -> Section:
        """Finds or makes the section of a name, on all processes or on none."""
        problem: Exception | None = None
        needed = kept = 0
        writers = tuple(agreement.processes())
        try:
            name = catalog.check_new_name(name)
            if keep is not None:
                arguments.check_keep(keep)
            flat = describe(writers)
            devices = self.made()
            entry = catalog.find(devices, name)
            kept = keep or 2
            if entry:
                catalog.check_kind(devices, entry, kept)
                kept = entry.keep
            geometry = catalog.geometry_for(devices, kept)
            needed = flat.description.section_bytes(flat.values, geometry)
            # If a later tree has other shardings, each process may need one more block.
            more += len(writers) if len(writers) > 1 else 0
            needed += more * geometry.areas * layout.BLOCK_BYTES
        except Exception as error:
            problem = error
        own = json.dumps([needed, kept, repr(name)]).encode()
        told = list(
            map(json.loads, agreement.raise_first(writers, problem, "could not publish", own))
        )
        for side, other in enumerate(told):
            if other[1:] != told[0][1:]:
                texts = [f"keep={each[1]} and the name {each[2]}" for each in (told[0], other)]
                what = "must not publish different names or different values of keep"
                raise agreement.mismatch(writers, (0, side), texts, what)

        def create() -> Section | None:
            if writers[0] != agreement.own():
                return None
            size = max(needed for needed, *_ in told)
            return Section(devices, catalog.create(devices, name, kept, size))

        def find() -> Section:
            if (section := made or Section.find(devices, name)) is None:
                where = repr(devices.where)
                raise errors.StoreError(agreement.other_memory(where, writers[0], agreement.own()))
            return section

        made = agreement.on_all(writers, create, "could not publish")
        return agreement.on_all(writers, find, "could not publish")


def restore(
    publisher: "Publisher",
    read: Callable[[Section, Records], Result],
    version: int | None = None,
) -> Result | None:
    """Reads a version, by default the newest undamaged one, on all processes, or raises on all.

    Later saves continue from this version: it is not overwritten until the next two are valid.
    Returns what `read` has returned, or None if there is no such version.
    """
    section = publisher.section

    def look() -> tuple[Section, list[Records]]:
        found = [of for of in section.all_valid() if version in (None, of[0].version)]
        if not section.is_current():
            raise errors.StoreError(f"{section.text} was deleted: open it again")
        return section, found

    writers, only = agreement.processes(), version is not None
    with agreement.topic(f"a restore of {section.entry.name!r}"):
        found = following.read_version(writers, look, lambda: section, read, only)
    if found is None:
        return None
    publisher.continue_from(found[0])
    return found[1]
