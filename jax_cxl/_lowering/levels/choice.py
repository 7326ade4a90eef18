"""Which collectives run in levels (docs/levels.md). All ranks make the same choice."""

from collections.abc import Mapping

import numpy as np

from jax_cxl._job import lifecycle
from jax_cxl._lowering.contract import Op

# The collectives that have levels.
OPS = (Op.ALL_REDUCE, Op.REDUCE_SCATTER, Op.ALL_GATHER, Op.ALL_TO_ALL, Op.BROADCAST)
# Levels save too little to be faster in smaller groups, such as 2 x 2 devices. Those run in levels
# only if a program asks for levels.
_LEAST_RANKS = 8


def field(op: Op) -> str:
    """Returns the field of the tuning table that has the least bytes for levels."""
    return f"levels_{op.name.lower()}_bytes"


def pays(op: Op, num_bytes: int, grid: np.ndarray | None) -> bool:
    """Returns whether a collective is faster in levels.

    `num_bytes` are those of a rank's operand or of its result, whichever is larger.
    """
    if op not in OPS or grid is None or len(grid) == 1 or grid.size < _LEAST_RANKS:
        return False
    least: int = getattr(lifecycle.ensure_started().tuning, field(op))
    return num_bytes >= least


def grid(groups: np.ndarray, process_of: Mapping[int, int]) -> np.ndarray | None:
    """Returns how the ranks of a group are spread over processes.

    The result has a row for each process: the places of its ranks in a group, in increasing order.
    It is None if a process has another number of ranks of a group than the others, or only one, or
    if two groups are spread in different ways.
    """
    grids = {_rows([process_of[rank] for rank in group]) for group in groups.tolist()}
    if len(grids) != 1 or None in grids:
        return None
    return np.array(grids.pop())


def _rows(processes: list[int]) -> tuple[tuple[int, ...], ...] | None:
    places: dict[int, list[int]] = {}
    for place, process in enumerate(processes):
        places.setdefault(process, []).append(place)
    sizes = {len(row) for row in places.values()}
    if len(sizes) != 1 or sizes == {1}:
        return None
    return tuple(map(tuple, places.values()))
