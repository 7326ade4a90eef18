"""How much memory versions of a tree need."""

from collections.abc import Sequence
from typing import Any

from jax_cxl._store.memory import layout
from jax_cxl._store.trees import leaves
from jax_cxl._store.trees.description import Description

# Bytes reserved for Python values. The values change from step to step, but the memory that a tree
# needs should not.
_ROOM_FOR_VALUES = 4096
# Python values with at most this many characters of JSON certainly fit into `_ROOM_FOR_VALUES`,
# however well zlib compresses the text around them.
_SHORT_VALUES = 512


def section_bytes(
    description: Description, values: Sequence[Any], geometry: layout.Geometry
) -> int:
    """Returns how many bytes of each device a section needs for versions of a tree.

    Args:
      description: leaves of the tree.
      values: its Python values.
      geometry: geometry of the section. Its start and end do not matter.
    """
    directory_bytes = description.directory_bytes + _ROOM_FOR_VALUES
    if len(leaves.values_text(values)) > _SHORT_VALUES:
        directory_bytes = max(directory_bytes, len(description.directory(values)))
    placement = description.placement(geometry.blocks_per_row)
    return geometry.bytes_for(placement.total_rows(directory_bytes))
