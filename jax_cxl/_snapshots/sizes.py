"""How much memory snapshots of a tree need."""

import dataclasses
import functools
import json
from collections.abc import Sequence

from jax_cxl._snapshots import layout, leaves
from jax_cxl._snapshots import place as placing

# Bytes reserved for Python values. The values change from step to step, but the memory that a tree
# needs should not.
_ROOM_FOR_VALUES = 4096
# Characters of JSON that certainly fit there, however zlib compresses the text around them.
_SHORT_VALUES = 512


def place(
    described: Sequence[leaves.Leaf], writers: tuple[int, ...], geometry: layout.Geometry
) -> tuple[placing.Placement, int]:
    """Returns where the bytes of a tree go, and how many bytes each device needs.

    Args:
      described: leaves of the tree.
      writers: indices of the processes that save.
      geometry: geometry of the memory. Its `device_bytes` do not matter.
    """
    without_values = tuple(dataclasses.replace(leaf, value=None) for leaf in described)
    placement, directory_bytes = _place(without_values, writers, geometry.blocks_per_row)
    directory_bytes += _ROOM_FOR_VALUES
    if sum(len(json.dumps(leaf.value)) for leaf in described if not leaf.dtype) > _SHORT_VALUES:
        directory_bytes = max(directory_bytes, len(leaves.encode(described, writers)))
    return placement, geometry.bytes_for(placement.total_rows(directory_bytes))


@functools.lru_cache(4)
def _place(
    described: tuple[leaves.Leaf, ...], writers: tuple[int, ...], blocks_per_row: int
) -> tuple[placing.Placement, int]:
    placement = placing.place(described, len(writers), blocks_per_row)
    return placement, len(leaves.encode(described, writers))
