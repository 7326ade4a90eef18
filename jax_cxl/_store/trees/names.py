"""Parses names of leaves, which `jax.tree_util.keystr` has made from their paths."""

import ast
import re

_ATTRIBUTE = re.compile(r"\.(\w+)")
_FLAT = re.compile(r"\[<flat index (\d+)>\]")


def parse(name: str) -> tuple[str | int, ...]:
    """Returns the keys of a leaf's path.

    Positions in sequences, and keys of dicts that are ints, are numbers. All other keys become
    text.

    Args:
      name: name of the leaf.
    """
    keys: list[str | int] = []
    at = 0
    while at < len(name):
        if (match := _ATTRIBUTE.match(name, at)) is not None:
            keys.append(match[1])
            at = match.end()
        elif (match := _FLAT.match(name, at)) is not None:
            keys.append(int(match[1]))
            at = match.end()
        else:
            key, at = _subscript(name, at)
            keys.append(key)
    return tuple(keys)


def simple(name: str) -> tuple[str, ...]:
    """Returns the keys of a path as text, as orbax writes them: `['mu']` for `.mu`."""
    return tuple(map(str, parse(name)))


def _subscript(name: str, start: int) -> tuple[str | int, int]:
    """Returns the key in brackets that begins at `start`, and where it ends."""
    end = start
    while (end := name.find("]", end + 1)) >= 0:
        # A key that is text may contain brackets. So try the closing brackets one after another.
        try:
            key = ast.literal_eval(name[start + 1 : end])
        except (SyntaxError, ValueError):
            continue
        return (key if isinstance(key, int) and not isinstance(key, bool) else str(key)), end + 1
    end = name.find("]", start)
    end = len(name) if end < 0 else end + 1
    return name[start:end].strip("[]"), end
