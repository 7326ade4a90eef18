"""What the directory of a version says: its leaves, and where their bytes are."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from jax_cxl import errors
from jax_cxl._store.memory.layout import Record
from jax_cxl._store.trees import leaves, place, pytrees


class Structure:
    """The content of a directory, which other versions of the same tree can share.

    Attributes:
      parts: where the bytes of a shard are, by the name of its leaf and its number.
      found: a cache for callers, for what they derive from the structure.
    """

    @pytrees.collector_paused()
    def __init__(self, directory: np.ndarray, records: Sequence[Record], blocks_per_row: int):
        """Decodes a directory."""
        self.directory = directory
        try:
            found, self.writers, whole = leaves.decode(directory.tobytes())
        except ValueError as error:
            raise errors.StoreError(str(error)) from error
        self.leaves = {leaf.name: leaf for leaf in found}
        placement = place.place(found, len(records), blocks_per_row, whole)
        if len(self.writers) != len(records) or any(
            placement.data_blocks(r.writer) != r.data_blocks
            or placement.first_row(r.writer) != r.first_row
            for r in records
        ):
            raise errors.StoreError(
                "the version is damaged, because its records do not match its list of leaves:"
                " restore an older version of the data"
            )
        self.parts: dict[tuple[str, int], list[place.Part]] = {}
        for part in placement.parts:
            self.parts.setdefault((found[part.leaf].name, part.shard), []).append(part)
        self.found: dict[Any, Any] = {}
        # Python values are in the directory, so each version has its own.
        self._has_values = not all(leaf.dtype for leaf in found)
        self._of = self._key(records)

    def is_of(self, records: Sequence[Record]) -> bool:
        """Whether a version of the same name has the same leaves, in the same places."""
        return self._key(records) == self._of

    def _key(self, records: Sequence[Record]) -> Any:
        values = records[0].directory_checksum if self._has_values else 0
        return values, [(r.tree, r.first_row, r.data_blocks) for r in records]
