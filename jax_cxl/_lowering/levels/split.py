"""How the ranks of a group are spread over processes."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np


class Split(NamedTuple):
    """Groups of ranks as a grid: a row for each process, with the same number of ranks in each row.

    `at` has the places of the grid's ranks in their group, which are the same in all groups. Each
    row of `across` has a rank of each process, with the same place in it.
    """

    at: np.ndarray
    across: np.ndarray

    @property
    def processes(self) -> int:
        """The number of processes of a group."""
        return self.at.shape[0]

    @property
    def per_process(self) -> int:
        """The number of ranks of a group in each process."""
        return self.at.shape[1]


def of(groups: np.ndarray, process_of: Mapping[int, int]) -> Split | None:
    """Returns how groups of ranks are spread over processes.

    Returns None if a process has another number of ranks of a group than the others, or only one,
    or if two groups are spread in different ways.
    """
    grids = {_grid([process_of[rank] for rank in group]) for group in groups.tolist()}
    if len(grids) != 1 or None in grids:
        return None
    at = np.array(grids.pop())
    return Split(at, groups[:, at.T].reshape(-1, len(at)))


def _grid(processes: list[int]) -> tuple[tuple[int, ...], ...] | None:
    """Returns a row for each process: the places of its ranks in a group, in increasing order.

    Returns None if the rows have different lengths, or only one place each.
    """
    places: dict[int, list[int]] = {}
    for place, process in enumerate(processes):
        places.setdefault(process, []).append(place)
    sizes = {len(row) for row in places.values()}
    if len(sizes) != 1 or sizes == {1}:
        return None
    return tuple(map(tuple, places.values()))
