"""Another job, which publishes, deletes and creates while a test reads."""

import contextlib
import threading
from typing import Any

import jax
import numpy as np

import jax_cxl
from jax_cxl._store.memory.section import Section

KEEP = 2


def tree(value: int) -> dict[str, Any]:
    """Returns the tree that a job publishes as its `value`-th."""
    return {"x": np.arange(320, dtype=np.int32).reshape(8, 40) * 1000 + value, "n": value}


class OtherJob:
    """A job that publishes one name of a store, or snapshots.

    A test calls `begin`, then reads while the job acts, and then compares what it has read.

    Attributes:
      where: URI of the memory.
      start: the newest version at the last `begin`.
      first: the oldest version at the last `begin`.
    """

    def __init__(self, where: str, name: str = "a"):
        self.where, self._name = where, name
        self._value = 0
        self._elsewhere: list[str] = []
        self._written, self._may_finish = threading.Event(), threading.Event()
        self._values: dict[int, int] = {}
        self._seen: dict[int, set[int]] = {}
        self._newest: dict[int, set[int]] = {}
        self._open()
        # One more than there are areas: the newest version is not in the area that is read first.
        self.publish(KEEP + 2)

    def _open(self) -> None:
        self._store = jax_cxl.Store(self.where)
        self._devices = self._store._names.made()
        if self._name == "snapshots":
            self._snapshots = jax_cxl.Snapshots(self.where)
            self._devices = self._snapshots._look(make=True).section.devices
        # A save checks the paths when it has written everything except its record.
        real = self._devices.check_paths

        def check_paths() -> None:
            if threading.current_thread().name.startswith("jax_cxl store"):
                self._written.set()
                self._may_finish.wait(60)
            real()

        self._devices.check_paths = check_paths

    def whole(self) -> dict[int, int]:
        """Returns the whole versions, each with the value of its tree."""
        section = Section.find(self._devices, self._name)
        found = section.all_valid() if section else []
        return {records[0].version: self._values[records[0].version] for records in found}

    def publish(self, count: int = 1) -> None:
        """Completes versions."""
        for _ in range(count):
            self.half()
            self.finish()

    def half(self) -> None:
        """Begins a version, and writes all but its record. `finish` completes it."""
        self._value += 1
        self._begun = max(self._values, default=-1) + 1
        self._written.clear()
        self._may_finish.clear()
        if self._name == "snapshots":
            self._snapshots.save(self._begun, tree(self._value))
        else:
            self._store.publish(self._name, tree(self._value))
        self._written.wait(60)

    def finish(self) -> None:
        """Completes the version that was begun."""
        self._may_finish.set()
        if self._name == "snapshots":
            self._snapshots.wait()
        else:
            self._store.flush(self._name)
        self._values[self._begun] = self._value
        for versions in (self._seen, self._newest):
            versions.setdefault(self._begun, set()).add(self._value)

    def create_again(self) -> None:
        """Deletes the name, and publishes it again. Other data take its former place.

        Does nothing if a process reads the name.
        """
        if self._name == "snapshots":
            self._snapshots.close()
        try:
            self._store.delete(self._name)
        except jax_cxl.StoreError as error:
            assert "reads it" in str(error), error
            return
        self._values = {}
        if self._name == "snapshots":
            self._open()
        else:
            for name in self._elsewhere:
                with contextlib.suppress(jax_cxl.StoreError):  # A process reads it.
                    self._store.delete(name)
            self._elsewhere.append(f"data {self._value}")
            self._store.publish(self._elsewhere[-1], tree(-1))
            self._store.flush(self._elsewhere[-1])
        self.publish(KEEP)

    def begin(self) -> None:
        """Forgets which versions a reader may have seen."""
        whole = self.whole()
        self.start, self.first = max(whole), min(whole)
        self._seen = {version: {value} for version, value in whole.items()}
        self._newest = {self.start: {whole[self.start]}}

    def was_whole(self, version: int, of: Any) -> bool:
        """Whether a version was whole at some time since `begin`, with this tree.

        A tree of None stands for any tree.
        """
        return _is_in(self._seen, version, of)

    def is_newest(self, version: int, of: Any) -> bool:
        """Whether a version was the newest one at some time since `begin`, with this tree."""
        return _is_in(self._newest, version, of)


def _is_in(versions: dict[int, set[int]], version: int, of: Any) -> bool:
    values = versions.get(version, set())
    if of is None:
        return bool(values)
    return any(_is_equal(of, tree(value)) for value in values)


def _is_equal(found: Any, expected: dict[str, Any]) -> bool:
    if set(found) != set(expected) or found["n"] != expected["n"]:
        return False
    x = found["x"]
    if isinstance(x, jax.Array):
        x.block_until_ready()
    array = np.asarray(x)
    return (array.dtype, array.shape) == (np.int32, (8, 40)) and (
        array.tobytes() == expected["x"].tobytes()
    )
