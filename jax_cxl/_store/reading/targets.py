"""Reads leaves into arrays and tensors that the program has."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from jax_cxl._store.reading import into_gpus
from jax_cxl._store.reading.restoring import MisfitError, Reader
from jax_cxl._store.trees import leaves, names, tensors


@dataclasses.dataclass(frozen=True)
class Target:
    """Where a leaf, or a part of it, goes.

    Attributes:
      given: what the program gave: a NumPy array or a tensor.
      array: an array over its memory; None for a tensor on a GPU.
      dtype: its dtype.
      slices: the part of the leaf; () for all.
    """

    given: Any
    array: np.ndarray | None
    dtype: np.dtype
    slices: tuple[slice, ...]


class Filled:
    """Targets that have been read into, and what they hold until somebody writes to them."""

    def __init__(self, targets: Mapping[str, Target]):
        """Notes the targets at the end of a read."""
        self.targets = targets
        self._writes = {path: tensors.writes(target.given) for path, target in targets.items()}

    def holds(self, path: str) -> bool:
        """Whether PyTorch has counted no write to a target since the read."""
        return tensors.writes(self.targets[path].given) == self._writes[path]


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
) -> tuple[dict[str, Any], into_gpus.Copies]:
    """Reads leaves into the targets of the host, and starts copies to those on GPUs.

    Args:
      targets: the targets, by path.
      reader: the version.
      filled: the targets after an earlier read, if `reader` knows the version of that read.

    Returns:
      What the program gave, by path, and the copies to GPUs.

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
        knows = filled is not None and filled.holds(path)
        own = reader if knows else reader.forgetting()
        work.append((target, into_gpus.Part(own, leaf, _index(path, leaf, target), target.given)))
    copies = into_gpus.start([part for target, part in work if target.array is None])
    try:
        for target, part in work:
            if target.array is not None:
                part.reader.read_into(part.leaf, part.index, target.array)
    except BaseException:
        copies.wait()
        raise
    return {path: target.given for path, target in targets.items()}, copies


def _index(path: str, leaf: leaves.Leaf, target: Target) -> leaves.Index:
    """Returns the part of a leaf that goes to a target, after checking that it fits."""
    missing = len(leaf.shape) - len(target.slices)
    if missing < 0:
        raise MisfitError(f"{path} has {len(leaf.shape)} dimensions: give at most as many slices")
    index = leaves.index_of((*target.slices, *[slice(None)] * missing), leaf.shape)
    shape = tuple(max(0, end - start) for start, end in index)
    have = tuple(target.given.shape), target.dtype
    if have != (shape, leaves.dtype_of(leaf.dtype)):
        raise MisfitError(
            f"{path} was saved as {leaf.dtype} with shape {leaf.shape}, so `into` needs an array"
            f" of {leaf.dtype} with shape {shape}, not of {have[1]} with {have[0]}"
        )
    return tuple((start, max(start, end)) for start, end in index)
