"""Parses names of leaves, which `jax.tree_util.keystr` has made from their paths."""

import ast
import collections
import re
from collections.abc import Mapping
from typing import TypeVar

Value = TypeVar("Value")

_ATTRIBUTE = re.compile(r"\.(\w+)")
_FLAT = re.compile(r"\[<flat index (\d+)>\]")


def simple(name: str) -> tuple[str, ...]:
    """Returns the keys of a leaf's path as text: `mu` for `.mu` and for `['mu']`."""
    keys = []
    at = 0
    while at < len(name):
        if match := _ATTRIBUTE.match(name, at) or _FLAT.match(name, at):
            key, at = match[1], match.end()
        else:
            key, at = _subscript(name, at)
        keys.append(key)
    return tuple(keys)


def by_path(saved: Mapping[str, Value]) -> dict[str, Value]:
    """Returns values by the paths of their leaves, such as "params/w" for `['params']['w']`.

    Leaves whose paths would be equal have their names instead, so that no two are equal.
    """
    found = {name: "/".join(simple(name)) for name in saved}
    count = collections.Counter(found.values())
    clash = {path for path in count if count[path] > 1 or path in found}
    return {name if path in clash else path: saved[name] for name, path in found.items()}


def _subscript(name: str, start: int) -> tuple[str, int]:
    """Returns the key in brackets that begins at `start`, as text, and where it ends."""
    end = start
    while (end := name.find("]", end + 1)) >= 0:
        # A key that is text may contain brackets. So try the closing brackets one after another.
        try:
            return str(ast.literal_eval(name[start + 1 : end])), end + 1
        except (SyntaxError, ValueError):
            continue
    end = name.find("]", start)
    end = len(name) if end < 0 else end + 1
    return name[start:end].strip("[]"), end
