"""Enumerations that Python and C++ share. tests/ops/names_test.py compares them with C++.

`Op` and `ReduceOp` are written here too, because type checkers read their members.
"""

import enum

from jax_cxl import _core

# The position of a dtype is its value.
DTYPES = _core.DTYPES


class Op(enum.IntEnum):
    """jax_cxl::plan::Op. The table of cc/plan/operations.h has a row for each."""

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
