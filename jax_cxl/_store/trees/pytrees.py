"""Takes trees apart and puts them together, as JAX does.

If the program has imported JAX, JAX does it. Otherwise no container can be registered with JAX, and
the trees consist of dicts, lists, tuples and None.
"""

import contextlib
import dataclasses
import gc
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from jax_cxl._store import frameworks

_lock = threading.Lock()
_pauses = 0
_was_enabled = False  # before the first pause


def flatten(tree: Any) -> tuple[list[Any], Any]:
    """Returns the leaves of a tree, and its structure: JAX's, or a `Structure`."""
    if jax := frameworks.jax():
        found: tuple[list[Any], Any] = jax.tree.flatten(tree)
        return found
    _, leaves, structure = flatten_with_names(tree)
    return leaves, structure


def flatten_with_names(tree: Any) -> tuple[list[str], list[Any], Any]:
    """Returns the names of the leaves, as `jax.tree_util.keystr` writes them, besides."""
    if jax := frameworks.jax():
        flat, structure = jax.tree_util.tree_flatten_with_path(tree)
        names = [jax.tree_util.keystr(path) for path, _ in flat]
        return names, [x for _, x in flat], structure
    found: list[tuple[str, Any]] = []
    own = _take_apart(tree, "", found)
    return [name for name, _ in found], [x for _, x in found], own


@dataclasses.dataclass(frozen=True)
class Structure:
    """A tree without its leaves, in a program without JAX. `kind` is None for a leaf."""

    kind: Any
    keys: tuple[Any, ...] = ()
    children: tuple["Structure", ...] = ()
    default: Any = None

    def unflatten(self, leaves: Iterable[Any]) -> Any:
        """Returns a tree of this structure with these leaves."""
        left = iter(leaves)
        if self.kind is None:
            return next(left)
        made = [child.unflatten(left) for child in self.children]
        if self.kind is type(None):
            return None
        if issubclass(self.kind, dict):
            pairs = zip(self.keys, made, strict=True)
            return defaultdict(self.default, pairs) if self.default else self.kind(pairs)
        return self.kind(*made) if hasattr(self.kind, "_fields") else self.kind(made)


_LEAF = Structure(None)


def _take_apart(tree: Any, name: str, found: list[tuple[str, Any]]) -> Structure:
    """Adds the leaves of a tree to a list, with their names; returns the tree's structure."""
    children = _children(tree)
    if children is None:
        found.append((name, tree))
        return _LEAF
    return Structure(
        type(tree),
        tuple(key for key, *_ in children),
        tuple(_take_apart(x, name + text, found) for _, text, x in children),
        getattr(tree, "default_factory", None),
    )


def _children(tree: Any) -> list[tuple[Any, str, Any]] | None:
    """Returns the children of a container: key, key as in a name, and child; None for a leaf."""
    kind = type(tree)
    if tree is None:
        return []
    if kind in (dict, OrderedDict, defaultdict):
        keys = tree if kind is OrderedDict else sorted(tree)
        return [(key, f"[{key!r}]", tree[key]) for key in keys]
    if isinstance(tree, tuple) and hasattr(kind, "_fields"):
        fields = zip(kind._fields, tree, strict=True)
        return [(n, f".{field}", x) for n, (field, x) in enumerate(fields)]
    if kind in (list, tuple):
        return [(n, f"[{n}]", x) for n, x in enumerate(tree)]
    return None


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Pauses Python's garbage collector, for all threads. It also works as a decorator.

    A tree of thousands of leaves makes many objects. They form no cycles, but the collector
    searches all objects of the program again and again, which takes a third of the time of a
    restore.
    """
    global _pauses, _was_enabled
    with _lock:
        if _pauses == 0:
            _was_enabled = gc.isenabled()
            gc.disable()
        _pauses += 1
    try:
        yield
    finally:
        with _lock:
            _pauses -= 1
            if _pauses == 0 and _was_enabled:
                gc.enable()
