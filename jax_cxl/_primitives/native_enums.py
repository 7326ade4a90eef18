"""Enumerations that Python and C++ share, with the values of the C++ headers."""

import enum

# In the order of jax_cxl::DType (cc/base/dtype.h): the position is the value.
DTYPES = (
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "complex64",
    "complex128",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e4m3b11fnuz",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
    "float8_e4m3",
    "float8_e3m4",
    "float8_e8m0fnu",
)


class Op(enum.IntEnum):
    """jax_cxl::plan::Op (cc/plan/plan.h)."""

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


class ReduceOp(enum.IntEnum):
    """jax_cxl::ReduceOp (cc/base/dtype.h)."""

    SUM = 0
    PROD = 1
    MIN = 2
    MAX = 3
    AND = 4
    OR = 5


# The operations that have a reduction.
REDUCTIONS = (Op.ALL_REDUCE, Op.REDUCE_SCATTER, Op.REDUCE, Op.SCAN, Op.EXSCAN)
