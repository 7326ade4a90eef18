"""Builds a tree from the leaves of a version."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from jax_cxl._store import frameworks
from jax_cxl._store.reading.restoring import MisfitError
from jax_cxl._store.reading.version import Source, check_fits
from jax_cxl._store.trees import leaves, names, pytrees


@dataclasses.dataclass(frozen=True)
class Wanted:
    """A tree like the tree to build, split into leaves."""

    names: Sequence[str]
    likes: Sequence[Any]
    structure: Any


@pytrees.collector_paused()
def wanted(like: Any) -> Wanted:
    """Splits a tree into its leaves."""
    asked, flat, structure = pytrees.flatten_with_names(like)
    jax = frameworks.jax()
    for name, x in zip(asked, flat, strict=True):
        if not (jax and isinstance(x, jax.ShapeDtypeStruct)):
            leaves.check_kind(name, x)
    return Wanted(asked, flat, structure)


@pytrees.collector_paused()
def rebuild(asked: Sequence[str], likes: Sequence[Any], source: Source) -> list[Any]:
    """Returns the saved leaves of the names `asked`, in the forms of `likes`."""
    saved = by_names(asked, source.reader.leaves)
    building: Any = None
    if frameworks.jax():
        from jax_cxl._store.reading import on_devices

        building = on_devices.Building(source)
    makers = [
        _restored(like, leaf, source, building) for like, leaf in zip(likes, saved, strict=True)
    ]
    if building is not None:
        building.run()
    return [make() for make in makers]


def by_names(asked: Sequence[str], saved: dict[str, leaves.Leaf]) -> list[leaves.Leaf]:
    """Returns the leaves of the requested names."""
    for name in asked:
        if name not in saved:
            text = names.simple(name)
            other = next((of for of in saved if names.simple(of) == text), None)
            advice = f"it has {other}: use its key in `like`" if other else "leave it out of `like`"
            raise MisfitError(f"the version has no leaf {name or '(the whole tree)'}: {advice}")
    return [saved[name] for name in asked]


def _restored(like: Any, leaf: leaves.Leaf, source: Source, building: Any) -> Any:
    """Reads a leaf, and returns a function that makes it.

    Call the function only after the copies that this adds to `building` have run. In a program
    without JAX, `building` is None, and `like` is of NumPy.
    """
    if not leaf.dtype:
        if type(like) not in leaves.VALUES:
            raise MisfitError(
                f"{leaf.name} is the value {leaf.value!r}, not an array: change `like`"
            )
        return lambda: leaf.value
    if not hasattr(like, "shape") or not hasattr(like, "dtype"):
        raise MisfitError(f"{leaf.name} is an array of {leaf.shape}, not {like!r}: change `like`")
    if leaves.is_key(like) != bool(leaf.key):
        words = ("typed PRNG keys", "an array") if leaf.key else ("an array", "typed PRNG keys")
        raise MisfitError(
            f"{leaf.name} was saved as {words[0]}, and `like` has {words[1]}: change `like`"
        )
    if isinstance(like, np.ndarray | np.generic):
        check_fits(leaf, like)
        array = source.whole(leaf)
        return lambda: array if isinstance(like, np.ndarray) else array[()]
    return building.begin(like, leaf)
