"""What a read returns, how it reads a leaf, and what a later read may use again of its arrays.

What is known about the bytes of an array belongs to the array. So it holds only for the very arrays
that were returned, and for one later read. It is void once a read that may write to these arrays
has begun, until that read has ended well. Then it belongs to the result of that read.
"""

import contextlib
import dataclasses
import functools
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jax_cxl._store.reading import into_gpus
from jax_cxl._store.reading.restoring import Known, MisfitError, Reader
from jax_cxl._store.reading.targets import Filled
from jax_cxl._store.trees import leaves, pytrees


class Reusable:
    """The arrays of a result, or the program's own that were read into, for one later read."""

    def __init__(
        self, known: Known | None, arrays: Mapping[str, Any], filled: Filled | None = None
    ):
        """Notes what has been read. `known` is None if the bytes of the arrays are not known."""
        self.filled = filled
        # Empty while a read has the arrays, and afterwards. Threads may read at the same time, and
        # `pop` gives the arrays to one of them.
        self._known = [known]
        # Weak references, so that the program can free an array that it takes out of the tree.
        self._arrays = {
            k: weakref.ref(x)
            for k, x in arrays.items()
            if isinstance(x, np.ndarray) or leaves.is_array(x)
        }

    def __reduce__(self) -> Any:
        return Reusable, (None, {})  # Nothing is known about copies of the arrays.

    def check(self) -> None:
        """Raises ValueError if the arrays have been given to another read."""
        if not self._known:
            raise ValueError(
                "into was given to an earlier read, so its arrays belong to the result of that"
                " read: pass that result"
            )

    def forget(self) -> None:
        """Notes that nothing is known about the bytes of the arrays."""
        self._known = [None]

    @contextlib.contextmanager
    def taken(self, tree: Any, likes: Sequence[Any]) -> Iterator["Begin"]:
        """Gives the arrays to a read, whose `likes` may be the same arrays as in the tree.

        The read gets a function that returns the known version and its arrays. After the first
        call, their bytes are not known.
        """
        self.check()
        left = [self._known.pop()]

        def begin() -> tuple[Known | None, Previous]:
            known = left.pop() if left else None
            if known is None:
                return None, NOTHING
            there = {id(x) for x in pytrees.flatten(tree)[0]}
            found = {name: ref() for name, ref in self._arrays.items()}
            found = {name: found[name] for name in found if id(found[name]) in there}
            asked = Counter(map(id, likes))
            return known, Previous(found, {n for n in found if _is_alone(found, n, asked)})

        try:
            yield begin
        except BaseException:
            self._known.append(left.pop() if left else None)
            raise


class Previous(NamedTuple):
    """Arrays by name, and the names of those that only the program's tree refers to."""

    arrays: Mapping[str, Any]
    alone: Collection[str]


NOTHING = Previous({}, ())
Begin = Callable[[], tuple[Known | None, Previous]]


@dataclasses.dataclass(frozen=True)
class Source:
    """Reads leaves of a version for process `own`, one of the `writers`.

    Attributes:
      previous: arrays of the version that `reader` knows.
    """

    reader: Reader
    writers: Sequence[int]
    own: int
    previous: Previous = NOTHING

    def whole(self, leaf: leaves.Leaf) -> np.ndarray:
        into = None if leaf.local else self._into(leaf)
        return self.part(leaf, tuple((0, n) for n in leaf.shape), True, into)

    def _into(self, leaf: leaves.Leaf) -> np.ndarray | None:
        """Returns the NumPy array into which a leaf is read; None to make a new array.

        An array that something else refers to is used only if it need not change: JAX may use its
        memory, for example after `jax.device_put`, and an array of JAX never changes.
        """
        have = self.previous.arrays.get(leaf.name)
        if not isinstance(have, np.ndarray):
            return None
        if (have.shape, have.dtype) != (leaf.shape, leaves.dtype_of(leaf.dtype)):
            return None
        is_alone = leaf.name in self.previous.alone
        may_change = is_alone and have.flags.writeable and have.flags.c_contiguous
        return have if may_change or self.reader.is_unchanged(leaf) else None

    def part(
        self,
        leaf: leaves.Leaf,
        index: leaves.Index,
        for_this_process: bool,
        into: np.ndarray | None = None,
    ) -> np.ndarray:
        """Returns a part of an array, which may be for this process alone."""
        saved_by = len(self.reader.writers)
        if leaf.local and for_this_process and saved_by == len(self.writers):
            return self.reader.read_local(leaf, index, self.writers.index(self.own))
        return self.reader.read_same(leaf, index, into)


def check_fits(leaf: leaves.Leaf, like: Any) -> None:
    if like.shape != leaf.shape:
        raise MisfitError(
            f"{leaf.name} was saved with shape {leaf.shape}, and `like` has {like.shape}: change"
            " `like`"
        )
    if like.dtype != leaves.dtype_of(leaf.dtype):
        raise MisfitError(
            f"{leaf.name} was saved as {leaf.dtype}, and `like` has {like.dtype}: change `like`"
        )


def _is_alone(arrays: Mapping[str, Any], name: str, asked: Mapping[int, int]) -> bool:
    """Whether only `arrays`, the program's tree and the `asked` leaves refer to an array."""
    if not isinstance(arrays[name], np.ndarray):
        return False
    array, memory = _references(arrays, name)
    return (array - asked.get(id(arrays[name]), 0), memory) == _least_references()


def _references(arrays: Mapping[str, Any], name: str) -> tuple[int, int]:
    """Counts the references to an array, and to the memory that it is a view of.

    NumPy keeps the owner of the memory as the base of each view. So every user of the memory refers
    to one of the two, even JAX while it runs a program that has an argument there.
    """
    array = arrays[name]
    return sys.getrefcount(array), sys.getrefcount(array.base)


@functools.cache
def _least_references() -> tuple[int, int]:
    """Counts the references to an array that only a tree and `arrays` refer to."""
    tree = [np.empty(1, np.uint8)[:].view(np.int8)]
    return _references({"": tree[0]}, "")


class Pending:
    """Copies to GPUs that have been started, of a version that is leased until they are checked."""

    def __init__(self, copies: into_gpus.Copies, lease: contextlib.ExitStack, reusable: Reusable):
        self.copies, self._reusable = copies, reusable
        self._problem: BaseException | None = None
        self._lock = threading.Lock()
        # If nobody checks the copies, the lease still ends after them.
        self._abandon = weakref.finalize(self, _abandon, copies, lease)
        self._abandon.atexit = False

    def check(self, again: bool = True) -> None:
        """Checks the copies. Raises their error; if `again`, also that of an earlier call."""
        with self._lock:
            if (taken := self._abandon.detach()) is not None:
                with taken[2][1]:
                    try:
                        self.copies.finish()
                    except BaseException as error:
                        self._reusable.forget()
                        self._problem = error
                        raise
            elif again and self._problem is not None:
                raise self._problem


def _abandon(copies: into_gpus.Copies, lease: contextlib.ExitStack) -> None:
    with lease:
        copies.wait()


@dataclasses.dataclass(frozen=True)
class Version:
    """A version of a tree that was read. It unpacks into `version, tree`.

    Attributes:
      version: its number, as the publisher gave it.
      tree: the tree.
    """

    version: int
    tree: Any
    _reusable: Reusable = dataclasses.field(repr=False, compare=False)
    _pending: Pending | None = dataclasses.field(default=None, repr=False, compare=False)

    def __iter__(self) -> Iterator[Any]:
        return iter((self.version, self.tree))

    def wait(self) -> None:
        """Lets PyTorch's current streams wait for the copies of a read with `non_blocking`.

        It returns at once. What the program enqueues afterwards sees the new values. These have not
        been checked yet: call `check` before you use results.
        """
        if self._pending is not None:
            self._pending.copies.let_streams_wait()

    def check(self) -> None:
        """Waits until a read with `non_blocking` has ended, and checks what it has read.

        Until then the version is not overwritten.

        Raises:
          StoreError: the version is damaged, and the values of the tensors are undefined.
        """
        if self._pending is not None:
            self._pending.check()
