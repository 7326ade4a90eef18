"""Reads leaves into arrays and tensors that the program has."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from jax_cxl._store.reading.restoring import Reader
from jax_cxl._store.reading.sources import MisfitError
from jax_cxl._store.trees import leaves, names, tensors


@dataclasses.dataclass(frozen=True)
class Target:
    """Where a leaf, or a part of it, goes.

    Attributes:
      given: what the program gave: a NumPy array or a tensor.
      array: an array over its memory.
      slices: the part of the leaf; () for all.
    """

    given: Any
    array: np.ndarray
    slices: tuple[slice, ...]


def of(into: Mapping[Any, Any]) -> dict[str, Target]:
    """Returns the targets by the paths of the leaves.

    Raises:
      TypeError, ValueError: a target is wrong.
    """
    return {path: _target(f"into[{path!r}]", given) for path, given in into.items()}


def _target(name: str, given: Any) -> Target:
    given, part = given if isinstance(given, tuple) and len(given) == 2 else (given, ())
    slices = part if isinstance(part, tuple) else (part,)
    if not all(isinstance(s, slice) and s.step in (None, 1) for s in slices):
        raise TypeError(f"{name}: the part {part!r} must be slices without a step")
    array: Any = given
    if tensors.is_tensor(given):
        try:
            array = tensors.array(given)
        except TypeError as error:
            raise TypeError(f"{name}: {error}") from None
    if type(array) is not np.ndarray:
        kind = type(given).__name__
        raise TypeError(f"{name} of type {kind} must be a NumPy array or a tensor of PyTorch")
    if not array.flags.writeable:
        raise ValueError(f"{name} is read-only: pass an array that can be written to")
    return Target(given, array, slices)


def read(targets: Mapping[str, Target], reader: Reader) -> dict[str, Any]:
    """Reads leaves into the targets; returns what the program gave, by path.

    Raises:
      StoreError: a leaf is missing, or has another shape or dtype, before anything is written; or
        it is damaged.
    """
    name_of = {path: name for name, path in names.paths(reader.leaves).items()}
    work = []
    for path, target in targets.items():
        leaf = reader.leaves.get(name_of.get(path, path))
        if leaf is None or not leaf.dtype:
            raise MisfitError(f"the version has no array {path}: leave it out of `into`")
        work.append((leaf, _index(path, leaf, target), target.array))
    for leaf, index, array in work:
        reader.read_into(leaf, index, array)
    return {path: target.given for path, target in targets.items()}


def _index(path: str, leaf: leaves.Leaf, target: Target) -> leaves.Index:
    """Returns the part of a leaf that goes to a target, after checking that it fits."""
    missing = len(leaf.shape) - len(target.slices)
    if missing < 0:
        raise MisfitError(f"{path} has {len(leaf.shape)} dimensions: give at most as many slices")
    index = leaves.index_of((*target.slices, *[slice(None)] * missing), leaf.shape)
    shape = tuple(max(0, end - start) for start, end in index)
    have = target.array.shape, target.array.dtype
    if have != (shape, leaves.dtype_of(leaf.dtype)):
        raise MisfitError(
            f"{path} was saved as {leaf.dtype} with shape {leaf.shape}, so `into` needs an array"
            f" of {leaf.dtype} with shape {shape}, not of {have[1]} with {have[0]}"
        )
    return tuple((start, max(start, end)) for start, end in index)
