"""Reads leaves into arrays and tensors that the program has."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from jax_cxl._store.reading import geometry, into_gpus
from jax_cxl._store.reading.restoring import MisfitError, Reader, Structure
from jax_cxl._store.trees import leaves, names, tensors


@dataclasses.dataclass(frozen=True)
class Target:
    """Where a leaf, or a part of it, goes.

    Attributes:
      array: an array over its memory; None for a tensor on a GPU.
    """

    given: Any
    array: np.ndarray | None
    dtype: np.dtype
    slices: tuple[slice, ...]


Places = Mapping[str, tuple[leaves.Leaf, leaves.Index]]  # what goes to each target, by path


class Filled:
    """Targets that a version was read into, and what they hold until somebody writes to them."""

    def __init__(self, targets: Mapping[str, Target], structure: Structure, places: Places):
        """Notes the targets when all writes of the read have been enqueued."""
        self.targets, self.structure, self.places = targets, structure, places
        self._writes = {path: tensors.writes(target.given) for path, target in targets.items()}

    def holds(self, path: str) -> bool:
        """Whether PyTorch has counted no write to a target since the read."""
        return tensors.writes(self.targets[path].given) == self._writes[path]


def of(into: Mapping[Any, Any]) -> dict[str, Target]:
    """Returns the targets by the paths of the leaves."""
    return {path: _target(f"into[{path!r}]", given) for path, given in into.items()}


def _target(name: str, given: Any) -> Target:
    given, part = given if isinstance(given, tuple) and len(given) == 2 else (given, ())
    slices = part if isinstance(part, tuple) else (part,)
    if not all(isinstance(s, slice) and s.step in (None, 1) for s in slices):
        raise TypeError(f"{name}: the part {part!r} must be slices without a step")
    array: Any = given
    if tensors.is_tensor(given):
        try:
            if tensors.is_on_gpu(given):
                return Target(given, None, tensors.dtype(given), slices)
            array = tensors.array(given)
        except TypeError as error:
            raise TypeError(f"{name}: {error}") from None
    if type(array) is not np.ndarray:
        kind = type(given).__name__
        raise TypeError(f"{name} of type {kind} must be a NumPy array or a tensor of PyTorch")
    if not array.flags.writeable:
        raise ValueError(f"{name} is read-only: pass an array that can be written to")
    return Target(given, array, array.dtype, slices)


def start(
    targets: Mapping[str, Target], reader: Reader, filled: Filled | None
) -> tuple[Filled, into_gpus.Copies]:
    """Reads leaves into the targets of the host, and starts copies to those on GPUs.

    The targets that it returns hold the version when the copies to GPUs have ended.
    """
    places = _places(targets, reader, filled)
    parts = []
    for path, target in targets.items():
        own = reader if filled is not None and filled.holds(path) else reader.forgetting()
        parts.append((into_gpus.Part(own, *places[path], target.given), target.array))
    copies = into_gpus.start(reader, [part for part, array in parts if array is None])
    try:
        for part, array in parts:
            if array is not None:
                part.reader.read_same(part.leaf, part.bounds, array)
        return Filled(targets, reader.structure, places), copies
    except BaseException:
        copies.wait()
        raise


def _places(targets: Mapping[str, Target], reader: Reader, filled: Filled | None) -> Places:
    """Returns which part of which leaf goes to each target, after checking that all fit."""
    # A program may give a tensor another shape.
    if (
        filled is not None
        and filled.structure is reader.structure
        and all(
            target.given.shape == geometry.shape_of(filled.places[path][1])
            for path, target in targets.items()
        )
    ):
        return filled.places
    by_path = names.by_path(reader.leaves)
    found = {}
    for path, target in targets.items():
        leaf = by_path.get(path) or reader.leaves.get(path)
        if leaf is None or not leaf.dtype:
            raise MisfitError(f"the version has no array {path}: leave it out of `into`")
        found[path] = leaf, _index(path, leaf, target)
    return found


def _index(path: str, leaf: leaves.Leaf, target: Target) -> leaves.Index:
    """Returns the part of a leaf that goes to a target, after checking that it fits."""
    missing = len(leaf.shape) - len(target.slices)
    if missing < 0:
        raise MisfitError(f"{path} has {len(leaf.shape)} dimensions: give at most as many slices")
    index = leaves.index_of((*target.slices, *[slice(None)] * missing), leaf.shape)
    index = tuple((start, max(start, end)) for start, end in index)
    shape = geometry.shape_of(index)
    have = tuple(target.given.shape), target.dtype
    if have != (shape, leaves.dtype_of(leaf.dtype)):
        raise MisfitError(
            f"{path} was saved as {leaf.dtype} with shape {leaf.shape}, so `into` needs an array"
            f" of {leaf.dtype} with shape {shape}, not of {have[1]} with {have[0]}"
        )
    return index
