"""The contract between lowered programs and the native handlers.

It consists of the targets of custom calls, the attributes of a call, and the enumerations in them.
cc/ffi/call/call_site.cc is the other side; tests/ops/names_test.py compares both. `Op` and
`ReduceOp` are written here although `_core` has them, so that type checkers see their members.
"""

import enum
from typing import Any

import numpy as np

from jax_cxl import _core

# Targets of custom calls. Those of starts, dones and ties are for GPUs only.
COLLECTIVE_TARGET = "jax_cxl_collective"
# take_rows and ragged_all_to_all
ROWS_TARGET = "jax_cxl_rows"
BARRIER_TARGET = "jax_cxl_barrier"
# A check of the slices of a ragged_all_to_all that moves nothing through the pool.
CHECK_SLICES_TARGET = "jax_cxl_check_slices"
# A start returns a token for its done.
START_TARGET = "jax_cxl_start"
START_ROWS_TARGET = "jax_cxl_start_rows"
DONE_TARGET = "jax_cxl_done"
TIE_TARGET = "jax_cxl_tie"
# Takes rows of a table in a store. No other process has to take part (cc/ffi/store/table.h).
TABLE_TARGET = "jax_cxl_table"
START_TABLE_TARGET = "jax_cxl_start_table"
TABLE_DONE_TARGET = "jax_cxl_table_done"
# Residuals that go to a store and come back (cc/ffi/store/residuals.h).
PUT_RESIDUAL_TARGET = "jax_cxl_put_residual"
GET_RESIDUAL_TARGET = "jax_cxl_get_residual"
# Each collective of a program is a call of one of these targets.
CALL_TARGETS = (COLLECTIVE_TARGET, ROWS_TARGET, BARRIER_TARGET, START_TARGET, START_ROWS_TARGET)

# The position of a dtype in this tuple is its value in the native enumeration.
DTYPES = _core.DTYPES


class Op(enum.IntEnum):
    """The collectives: jax_cxl::plan::Op. The table of cc/plan/operations.h has a row for each."""

    BARRIER = 0
    ALL_GATHER = 1
    ALL_REDUCE = 2
    REDUCE_SCATTER = 3
    ALL_TO_ALL = 4
    BROADCAST = 5
    REDUCE = 6
    GATHER = 7
    SCATTER = 8
    PERMUTE = 9
    SCAN = 10
    EXSCAN = 11
    RAGGED_ALL_TO_ALL = 12
    TAKE_ROWS = 13

    @property
    def operand_blocks(self) -> bool:
        """Whether the operand has a block for each rank."""
        return _core.OPERATIONS[self][1]

    @property
    def result_blocks(self) -> bool:
        """Whether the result has a block for each rank."""
        return _core.OPERATIONS[self][2]

    @property
    def reduces(self) -> bool:
        """Whether elements of several ranks are combined into one."""
        return _core.OPERATIONS[self][3]


class ReduceOp(enum.IntEnum):
    """jax_cxl::ReduceOp (cc/base/dtype.h)."""

    SUM = 0
    PROD = 1
    MIN = 2
    MAX = 3
    AND = 4
    OR = 5


def attributes(
    name: str,
    op: Op,
    ranks: np.ndarray,
    *,
    reduce_op: ReduceOp = ReduceOp.SUM,
    dtype: int = 0,
    count: int = 0,
    root: int = 0,
    sources: tuple[int, ...] = (),
    reverse: bool = False,
    rows: tuple[int, ...] = (),
    grid: np.ndarray | None = None,
    generation: int,
    program: str,
) -> dict[str, Any]:
    """Returns the attributes of a call between `ranks`, whose shape is (groups, ranks of a group).

    In programs that it takes over, the compiler hook (jax_cxl/_takeover/hook.py) fills in `site`,
    the number of the call in its program. No attribute tells where the user's program calls the
    collective: equal programs have equal attributes, because JAX counts the launches of equal
    programs together (docs/decisions/0002).

    Args:
      count: elements of one rank's block.
      sources: for permutations, the rank in the group from which each rank receives, or -1 if it
        receives nothing.
      rows: for `take_rows` and the ragged all-to-all, the numbers of rows of each rank's operand
        and of the output. For the ragged all-to-all, also the numbers of slices for each rank and
        of elements of the batch.
      grid: for a call in levels (cc/comm/level_calls.h), a row for each process: the places of its
        ranks in their group.
    """
    return {
        "name": name,
        "op": np.int32(op),
        "reduce_op": np.int32(reduce_op),
        "dtype": np.int32(dtype),
        "count": np.int64(count),
        "root": np.int32(root),
        "group_size": np.int32(ranks.shape[1]),
        "groups": np.ascontiguousarray(ranks.reshape(-1), np.int32),
        "sources": np.asarray(sources, np.int32),
        "reverse": np.int32(reverse),
        "rows": np.asarray(rows, np.int64),
        "processes": np.int32(0 if grid is None else len(grid)),
        "places": np.asarray(() if grid is None else grid, np.int32).reshape(-1),
        "generation": np.int32(generation),
        "program": program,
        "site": np.int64(-1),
    }


def row_scratch_bytes(ranks: int, table: int, taken: int, slices: int = 0) -> int:
    """Returns what cuda::RowScratchBytes (cc/engine/cuda/rows.cu) returns for these arguments."""
    places = 8 + 4 * (ranks * table + taken)
    published = -(-table // 4) * 4 if slices else 0
    return places + published + 32 * ranks * ranks * slices
