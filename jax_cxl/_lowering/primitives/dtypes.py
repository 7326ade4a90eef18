"""Which element types collectives support, in which they travel, and how reductions treat them."""

from typing import Any

import jax
import numpy as np

from jax_cxl._lowering.contract import DTYPES, Op, ReduceOp

# Elements of less than a byte. XLA packs them in its own way, so they travel in a wider dtype, the
# carrier.
PACKED_DTYPES = ("int2", "int4", "uint2", "uint4", "float4_e2m1fn")


def check_dtype(op: str, dtype: Any) -> None:
    """Raises TypeError for a dtype that collectives do not support."""
    if str(dtype) in DTYPES or str(dtype) in PACKED_DTYPES:
        return
    if jax.dtypes.issubdtype(dtype, jax.dtypes.extended):
        advice = "Pass its data, as from jax.random.key_data."
    else:
        advice = "Convert it to a supported dtype first, such as int8 or bfloat16."
    raise TypeError(f"jax_cxl.{op} does not support arrays of dtype {dtype}. {advice}")


def check_reduction(op: str, reduce_op: ReduceOp, dtype: Any) -> None:
    """Raises TypeError if collectives cannot reduce this dtype with `reduce_op`."""
    if reduce_op is ReduceOp.SUM and dtype == np.bool:
        # A sum of bools is not a bool.
        advice = ". Convert them to int32 to count."
    elif reduce_op in (ReduceOp.MIN, ReduceOp.MAX) and jax.dtypes.issubdtype(
        dtype, np.complexfloating
    ):
        advice = ": complex numbers have no order. Pass the real and the imaginary part."
    elif reduce_op in (ReduceOp.AND, ReduceOp.OR) and not (
        dtype == np.bool or jax.dtypes.issubdtype(dtype, np.integer)
    ):
        advice = ": only bool and integers have 'and' and 'or'. Compare them first, such as x != 0."
    else:
        return
    raise TypeError(f"jax_cxl.{op} does not support arrays of dtype {dtype}{advice}")


def carrier(dtype: Any, op: Op, reduce_op: ReduceOp = ReduceOp.SUM) -> str:
    """Returns the dtype in which arrays of `dtype` travel: `dtype`, or one that holds its values.

    Integers wrap around in the carrier as in their own dtype. Floats round once, when the result is
    converted back.
    """
    name = str(dtype)
    if name in ("int2", "int4"):
        return "int8"
    if name in ("uint2", "uint4"):
        return "uint8"
    if name == "float4_e2m1fn":
        return "float32" if op.reduces else "uint8"
    if name == "float8_e8m0fnu" and op.reduces:
        # This dtype cannot represent zero, so its sums and products are computed in float32.
        return "float32" if reduce_op in (ReduceOp.SUM, ReduceOp.PROD) else name
    return name


def accumulator(dtype: Any) -> Any:
    """Returns the dtype in which values of this dtype are added up: short floats use float32."""
    short = jax.dtypes.issubdtype(dtype, np.floating) and dtype.itemsize < 4
    return np.dtype(np.float32) if short else dtype


def count_bool(x: Any) -> Any:
    """Converts bool to int32, so that a sum counts values. Returns other dtypes as they are."""
    if isinstance(x, (bool, np.bool)):
        return int(x)
    return x.astype(np.int32) if jax.dtypes.result_type(x) == np.bool else x
