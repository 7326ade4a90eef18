"""The processes of a job agree on each save before they write anything."""

import contextlib
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from jax_cxl import errors
from jax_cxl._job import configuration
from jax_cxl._store import agreement
from jax_cxl._store.memory import checksum
from jax_cxl._store.memory.section import Section
from jax_cxl._store.trees import flatten, leaves
from jax_cxl._store.trees.description import Description, merge
from jax_cxl._store.writing import announcements
from jax_cxl._store.writing.announcements import Announcement

_POLL_SECONDS = 0.0005
_SAME_MEMORY_SECONDS = 10


class SaveAgreement:
    """What the processes have agreed on since they exchanged a token.

    Attributes:
      token: the token.
      writers: indices of the processes that save.
      own: position of this process among them.
    """

    def __init__(self, section: Section, token: int, writers: tuple[int, ...], own: int):
        """Starts with a token that all processes know."""
        self.token, self.writers, self.own = token, writers, own
        self._section = section
        self._attempt = 0
        # From the last time that the descriptions of the processes differed: the checksums of these
        # descriptions, and the description that was agreed on.
        self._merged: tuple[list[int], Description] | None = None

    def meet(self) -> None:
        """Checks once that all processes have the same memory. All processes call it.

        Raises:
          StoreError: they do not.
        """
        if self._attempt or len(self.writers) == 1:
            return
        self._announce(0, 0)
        agreement.gather([0])
        told = {self.own}

        def missing() -> list[int]:
            # Remember who has announced itself. A process may be replacing its announcement, and
            # then it cannot be read.
            told.update(writer for writer in self._others() if self._of(writer))
            return [self.writers[writer] for writer in self._others() if writer not in told]

        try:
            self.wait(missing, _SAME_MEMORY_SECONDS, "announced themselves")
        except errors.CollectiveTimeoutError as error:
            raise errors.StoreError(
                f"{self._section.text} is not the same memory on processes"
                f" {self.writers[self.own]} and {missing()}: name the same memory on all processes"
            ) from error

    def agree(self, flat: flatten.Flat, step: int) -> Description:
        """Waits until all processes have announced their trees; returns the common description.

        Args:
          flat: the tree of this process.
          step: the step of the save.

        Raises:
          MismatchError: the processes save different trees.
          StoreError: another process cannot save.
          CollectiveTimeoutError, PeerLostError: another process does not save.
        """
        description = flat.description
        if len(self.writers) == 1:
            return description
        values = leaves.values_text(flat.values).encode()
        details = checksum.of(struct.pack("<Q", step) + values)
        own = self._announce(description.digest, details)
        told = {self.own: own}
        self.wait(lambda: self._untold(told), None, "tried to save")
        trees = [told[writer].tree for writer in range(len(self.writers))]
        if any(of.details != details for of in told.values()):
            description = self._compare(flat, step)
        elif len(set(trees)) > 1:
            if self._merged is None or self._merged[0] != trees:
                self._merged = trees, self._compare(flat, step)
            description = self._merged[1]
        return description

    def number(self, previous: int) -> int:
        """Waits until the first process has chosen a number above `previous` for the save.

        Raises:
          StoreError: the first process cannot save.
          CollectiveTimeoutError, PeerLostError: it does not save.
        """
        claim = self._section.claim
        assert claim is not None
        first = self.writers[:1]
        self.wait(
            lambda: [] if claim.chosen(self._section) > previous else first, None, "begun to save"
        )
        return claim.chosen(self._section)

    def fail(self, error: BaseException) -> None:
        """Tells the other processes that this process cannot save."""
        # If the memory is the reason, the announcement may fail too.
        with contextlib.suppress(errors.PoolError, errors.StoreError, ValueError):
            if len(self.writers) > 1:
                text = f"{type(error).__name__}: {error}"
                self._announce(0, 0, problem=text)

    def wait(self, missing: Callable[[], Sequence[int]], timeout: float | None, what: str) -> None:
        """Waits until `missing` returns no process.

        Args:
          missing: returns the processes that have not done something yet.
          timeout: seconds, by default `JAX_CXL_TIMEOUT`.
          what: what they have not done.

        Raises:
          StoreError: a process cannot save.
          CollectiveTimeoutError, PeerLostError: a process does not save.
        """
        seconds = configuration.from_environment().timeout if timeout is None else timeout
        end = time.monotonic() + seconds
        while processes := missing():
            self._check_problems()
            if (lost := agreement.lost_rank(processes)) is not None and missing():
                error = errors.PeerLostError(f"rank {lost} was lost before it had {what}")
                error.rank = lost
                raise error
            if time.monotonic() > end:
                raise errors.CollectiveTimeoutError(
                    f"processes {list(processes)} have not {what} within {seconds:g} s: look at"
                    " what they do, or wait longer (timeout=, JAX_CXL_TIMEOUT)"
                )
            time.sleep(_POLL_SECONDS)

    def _check_problems(self) -> None:
        for writer in self._others():
            found = self._of(writer)
            if found and found.problem:
                raise errors.StoreError(
                    f"process {self.writers[writer]} could not save: {found.problem}"
                )

    def _announce(self, tree: int, details: int, problem: str = "") -> Announcement:
        self._attempt += 1
        own = Announcement(self._attempt, self.token, tree, details, problem)
        announcements.write(self._section, self.own, own)
        return own

    def _of(self, writer: int) -> Announcement | None:
        """Returns the announcement of a process, None if it is from before this agreement."""
        found = announcements.read(self._section, writer)
        return found if found and found.token == self.token else None

    def _untold(self, told: dict[int, Any]) -> list[int]:
        """Adds to `told` the announcements that have arrived; returns the processes without one."""
        missing = []
        for writer in self._others():
            found = None if writer in told else self._of(writer)
            if found and found.attempt == self._attempt and not found.problem:
                # Keep the announcement, because the process may overwrite it.
                told[writer] = found
            if writer not in told:
                missing.append(self.writers[writer])
        return missing

    def _others(self) -> Iterable[int]:
        return (writer for writer in range(len(self.writers)) if writer != self.own)

    def _compare(self, flat: flatten.Flat, step: int) -> Description:
        """Compares the trees of all processes leaf by leaf. All processes call it."""
        directory = flat.description.directory(flat.values)
        told = agreement.gather_bytes(struct.pack("<Q", step) + directory)
        steps = [struct.unpack("<Q", data[:8])[0] for data in told]
        other = next((i for i, other in enumerate(steps) if other != steps[0]), None)
        if other is not None:
            texts = [f"step {steps[0]}", f"step {steps[other]}"]
            raise agreement.mismatch(self.writers, (0, other), texts, "save different steps")
        return merge(
            [leaves.decode(data[8:])[0] for data in told], self.writers, flat.description.whole
        )
