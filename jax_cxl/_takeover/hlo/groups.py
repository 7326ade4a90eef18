"""XLA's notations of the groups that take part in a collective."""

import itertools
import math

import numpy as np

from jax_cxl._takeover.hlo.wire import Message

# Fields of HloInstructionProto that can hold the groups. Versions of XLA use different notations.
_GROUPS, _DEVICE_LIST, _IOTA, _MESH_AXES = 49, 87, 92, 93

Groups = list[list[int]]


def decode(instruction: Message) -> Groups:
    """Returns the groups of a collective, with the kind of ids that the instruction uses.

    [] means one group of all.
    """
    if instruction.has(_MESH_AXES):
        return _of_mesh_axes(Message(instruction.blob(_MESH_AXES)))
    if instruction.has(_IOTA):
        return _of_iota(Message(instruction.blob(_IOTA)))
    devices = Message(instruction.blob(_DEVICE_LIST))
    if devices.has(2):
        return _of_iota(Message(devices.blob(2)))
    groups = devices.messages(1) or instruction.messages(_GROUPS)
    return [group.integers(1) for group in groups]


def _of_iota(proto: Message) -> Groups:
    """Decodes [2,2]<=[4] or [2,2]<=[2,2]T(1,0): numbers from 0, reshaped and transposed."""
    ids = _iota(proto.integers(3), proto.integers(4))
    return ids.reshape(proto.get(1), proto.get(2)).tolist()


def _iota(dimensions: list[int], permutation: list[int]) -> np.ndarray:
    ids = np.arange(math.prod(dimensions)).reshape(dimensions)
    return ids.transpose(permutation) if permutation else ids


def _of_mesh_axes(proto: Message) -> Groups:
    """Decodes mesh['a'=2,'b'=4] {'b':(1)2}: groups along axes, or parts of axes, of a mesh."""
    mesh = Message(proto.blob(1))
    sizes = [axis.get(2) for axis in mesh.messages(1)]
    if mesh.has(3):
        order = Message(mesh.blob(3))
        ids = _iota(order.integers(1), order.integers(2)).reshape(-1)
    else:
        ids = np.array(mesh.integers(2) or range(math.prod(sizes)))
    # Split each axis into up to three dimensions: before, within, and after its named part. If two
    # parts of an axis are named, the axis is split at the ends of both.
    named = [(axis.get(1), *_part(axis, sizes)) for axis in proto.messages(2)]
    shape: list[int] = []
    where: dict[tuple[int, int], int] = {}
    for axis, size in enumerate(sizes):
        cuts = sorted({1, size, *(c for a, pre, n in named if a == axis for c in (pre, pre * n))})
        for start, end in itertools.pairwise(cuts):
            where[axis, start] = len(shape)
            shape.append(end // start)
    picked: list[int] = []
    for axis, pre, n in named:
        covered = 1
        while covered < n:
            position = where[axis, pre * covered]
            picked.append(position)
            covered *= shape[position]
    rest = [d for d in range(len(shape)) if d not in picked]
    width = math.prod(shape[d] for d in picked)
    return ids.reshape(shape).transpose(rest + picked).reshape(-1, width).tolist()


def _part(axis: Message, sizes: list[int]) -> tuple[int, int]:
    """Returns the size of an axis before its named part, and the size of the part.

    The first size is 1 if the whole axis is named.
    """
    if not axis.has(2):
        return 1, sizes[axis.get(1)]
    part = Message(axis.blob(2))
    return part.get(1), part.get(2)
