"""The processes of a job agree on each save before they write anything.

Each save takes two exchanges: of the trees, and of the number that the first process chooses. A
process that cannot save gives the reason in place of both. If it fails later, while the others
write, it leaves a note in the memory, because they are in no exchange then.
"""

import contextlib
import itertools
import struct
import time
from collections.abc import Callable, Sequence
from typing import Any

from jax_cxl import errors
from jax_cxl._job import configuration
from jax_cxl._store import agreement
from jax_cxl._store.memory import checksum, layout
from jax_cxl._store.memory.layout import Records
from jax_cxl._store.memory.section import Section
from jax_cxl._store.trees import flatten, leaves
from jax_cxl._store.trees.flatten import Description
from jax_cxl._store.trees.leaves import Leaf

_POLL_SECONDS = 0.0005
_EXCHANGES = 2  # of each save
_CAN, _CANNOT = b"\0", b"\1"
# A note: one, so that the first word shows that the rest is there; token; bytes of text.
_NOTE = struct.Struct("<QQH")
_TEXT_BYTES = layout.NOTE_BYTES - _NOTE.size - 8


class SaveAgreement:
    """What the processes have agreed on since they exchanged a token."""

    def __init__(self, section: Section, token: int, writers: tuple[int, ...], own: int):
        self.token, self.writers, self.own = token, writers, own
        self._job = agreement.job()
        self._section = section
        # From the last time that the descriptions of the processes differed: the checksums of these
        # descriptions, and the description that was agreed on.
        self._merged: tuple[tuple[int, ...], Description] | None = None

    def is_over(self) -> bool:
        """Whether the job has lost processes since, and continues without them."""
        return len(self.writers) > 1 and self._job != agreement.job()

    def agree(self, flat: flatten.Flat, number: int) -> Description:
        """Waits until all processes can save their trees; returns the common description."""
        description = flat.description
        if len(self.writers) == 1:
            return description
        values = leaves.values_text(flat.values).encode()
        details = checksum.of(struct.pack("<Q", number) + values)
        told = self._exchange(struct.pack("<QQ", description.digest, details))
        trees, all_details = zip(*(struct.unpack("<QQ", each) for each in told), strict=True)
        if len(set(all_details)) > 1:
            description = self._compare(flat, number)
        elif len(set(trees)) > 1:
            if self._merged is None or self._merged[0] != trees:
                self._merged = trees, self._compare(flat, number)
            description = self._merged[1]
        return description

    def number(self, begin: Callable[[], tuple[Any, int]]) -> tuple[Any, int]:
        """Returns what `begin` has returned on the first process; others get the number alone."""
        old, number = begin() if self.own == 0 else (None, 0)
        if len(self.writers) == 1:
            return old, number
        # `begin` may wait for readers, for as long as an exchange waits for a process.
        seconds = 2 * configuration.from_environment().timeout
        told = self._exchange(struct.pack("<Q", number), timeout=seconds)
        return old, struct.unpack("<Q", told[0])[0]

    def fail(self, error: BaseException) -> None:
        """Tells the other processes that this process cannot save. Waits for none of them."""
        if len(self.writers) == 1 or self.is_over():
            return
        text = f"{type(error).__name__}: {error}"
        # If the memory is the reason, the note may fail too.
        with contextlib.suppress(errors.PoolError, errors.StoreError, ValueError):
            write_note(self._section, self.own, self.token, text)
        for _ in range(_EXCHANGES):
            with contextlib.suppress(errors.CxlError):
                self._exchange(text.encode(), _CANNOT, 0)

    def wait(self, number: int, timeout: float | None) -> Records:
        """Waits until all processes have written their parts of a save; returns their records."""
        section = self._section
        what = f"written their parts of a {section.what}"
        begin = time.monotonic()
        while (records := section.complete(number)) is None:
            seconds = configuration.from_environment().timeout if timeout is None else timeout
            processes = []
            for writer, process in enumerate(self.writers):
                problem = read_note(section, writer, self.token)
                if problem and writer != self.own:
                    raise _could_not_save(process, problem)
                record = section.record(number, writer)
                if record is None or (record.number, record.token) != (number, self.token):
                    processes.append(process)
            lost = agreement.lost_rank(processes)
            if lost is not None and not section.complete(number):
                error = errors.PeerLostError(f"rank {lost} was lost before it had {what}")
                error.rank = lost
                raise error
            if time.monotonic() > begin + seconds:
                raise errors.CollectiveTimeoutError(
                    f"processes {processes} have not {what} within {seconds:g} s: look at"
                    " what they do, or wait longer (timeout=, JAX_CXL_TIMEOUT)"
                )
            time.sleep(_POLL_SECONDS)
        return records

    def _exchange(
        self, data: bytes, can: bytes = _CAN, timeout: float | None = None
    ) -> list[bytes]:
        """Returns the data of all processes."""
        if len(self.writers) == 1:
            return [data]
        # The token is new each time that the processes agree. So exchanges that a process has left
        # out after an error are in no later save's way.
        topic, what = f"save {self.token:x}", f"a save of {self._section.entry.name!r}"
        told = agreement.gather_bytes(can + data, topic, what, timeout)
        for process, each in zip(self.writers, told, strict=True):
            if each[:1] != _CAN:
                raise _could_not_save(process, each[1:].decode(errors="replace"))
        return [each[1:] for each in told]

    def _compare(self, flat: flatten.Flat, number: int) -> Description:
        """Compares the trees of all processes leaf by leaf. All processes call it."""
        directory = flat.description.directory(flat.values)
        told = self._exchange(struct.pack("<Q", number) + directory)
        numbers = [struct.unpack("<Q", data[:8])[0] for data in told]
        other = next((i for i, other in enumerate(numbers) if other != numbers[0]), None)
        if other is not None:
            unit = self._section.unit
            texts = [f"{unit} {numbers[0]}", f"{unit} {numbers[other]}"]
            raise agreement.mismatch(self.writers, (0, other), texts, f"save different {unit}s")
        return merge(
            [leaves.decode(data[8:])[0] for data in told], self.writers, flat.description.whole
        )


def merge(told: Sequence[Sequence[Leaf]], writers: tuple[int, ...], whole: bool) -> Description:
    """Returns one description from the descriptions of all processes.

    Descriptions of the same tree differ if all devices of an array belong to one process: that
    process describes the array as an array of its own, and the other processes do not.
    """
    merged = []
    for row in itertools.zip_longest(*told):
        leaf = row[0] if len(set(map(repr, row))) == 1 else _in_one_process(row)
        if leaf is None:
            other = next(i for i, leaf in enumerate(row) if repr(leaf) != repr(row[0]))
            raise _mismatch(writers, (0, other), (row[0], row[other]))
        merged.append(leaf._replace(value=None))
    return Description(tuple(merged), writers, whole)


def _in_one_process(row: Sequence[Leaf | None]) -> Leaf | None:
    """Returns the array that `row` describes if all of its devices are in one process, else None.

    `row` contains one leaf of the tree, as each of the processes describes it.
    """
    leaf = next((leaf for leaf in row if leaf is not None and not leaf.local), None)
    if leaf is None or len({w for shard in leaf.shards for w in shard.writers}) != 1:
        return None
    (owner,) = {w for shard in leaf.shards for w in shard.writers}
    shards = leaves.of_each_process(leaf.shards, len(row))
    expected = [leaf] * len(row)
    expected[owner] = leaf._replace(local=True, shards=shards)
    return leaf if list(row) == expected else None


def _mismatch(
    writers: Sequence[int], sides: tuple[int, int], of: Sequence[Leaf | None]
) -> errors.MismatchError:
    texts = [describe(leaf) for leaf in of]
    if texts[0] == texts[1]:
        texts = [f"{text} in {_shards(leaf)}" for text, leaf in zip(texts, of, strict=True)]
    return agreement.mismatch(
        writers, sides, texts, "save different trees. The first leaf that differs"
    )


def describe(leaf: Leaf | None) -> str:
    """Returns a leaf in words."""
    if leaf is None:
        return "no leaf"
    name = leaf.name or "(the whole tree)"
    if not leaf.dtype:
        return f"{name}, the {type(leaf.value).__name__} {leaf.value!r}"
    kind = f"keys of {leaf.key}" if leaf.key else leaf.dtype
    parts = [f"{name}, {kind}[{', '.join(map(str, leaf.shape))}]"]
    parts += ["with a weak type"] if leaf.weak_type else []
    parts += ["on devices of its own"] if leaf.local else []
    return " ".join(parts)


def _shards(leaf: Leaf | None) -> str:
    held = [(shard.index, shard.writers) for shard in leaf.shards] if leaf else []
    text = "; ".join(
        f"[{', '.join(f'{a}:{b}' for a, b in index)}] of processes {sorted(set(by))}"
        for index, by in held[:4]
    )
    return f"{len(held)} shards ({text}{'; ...' if len(held) > 4 else ''})"


def write_note(section: Section, writer: int, token: int, text: str) -> None:
    """Writes the note of a process, which has a place of its own, the first word last."""
    data = text.encode()[:_TEXT_BYTES]
    note = checksum.seal(_NOTE.pack(1, token, len(data)) + data, layout.NOTE_BYTES)
    for device in section.geometry.mirrors:
        section.write_entry(device, section.geometry.note(writer), note)


def read_note(section: Section, writer: int, token: int) -> str:
    """Returns the text of a process's note; "" if there is none with this token."""
    for device in section.geometry.mirrors[:2]:
        data = section.devices.read_entry(device, section.geometry.note(writer), layout.NOTE_BYTES)
        if data and checksum.is_sealed(data):
            _, found, size = _NOTE.unpack_from(data)
            text = data[_NOTE.size : _NOTE.size + size].decode(errors="replace")
            if found == token:
                return "".join(c if c.isprintable() else " " for c in text)
    return ""


def _could_not_save(process: int, problem: str) -> errors.StoreError:
    return errors.StoreError(f"process {process} could not save: {problem}")
