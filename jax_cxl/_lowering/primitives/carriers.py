"""Carriers: the wider dtypes in which narrow elements travel.

XLA packs elements of less than a byte in its own way. Such arrays are converted to a carrier before
the call, and the result is converted back.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from jax_cxl._lowering.contract import Op, ReduceOp
from jax_cxl._lowering.primitives import local_lowering


def of(dtype: Any, op: Op, reduce_op: ReduceOp = ReduceOp.SUM) -> str:
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


def carried(ctx, carrier: str, lower: Callable, *operands: Any) -> Sequence:
    """Lowers a call in a carrier: converts the operands to it, and the result back.

    Only operands with the dtype of the first operand are converted. A call in a carrier completes
    at once, so it has no token.
    """
    dtype, carrier_dtype = ctx.avals_in[0].dtype, jnp.dtype(carrier)
    if dtype == carrier_dtype:
        return lower(ctx, *operands)
    as_bits = jnp.issubdtype(dtype, jnp.floating) and not jnp.issubdtype(
        carrier_dtype, jnp.floating
    )

    def pack(v):
        return (lax.bitcast_convert_type(v, jnp.uint4) if as_bits else v).astype(carrier_dtype)

    def unpack(v):
        if as_bits:
            return lax.bitcast_convert_type(v.astype(jnp.uint4), dtype)
        return v.astype(dtype)

    values, avals = [], []
    for value, aval in zip(operands, ctx.avals_in, strict=True):
        if aval.dtype == dtype:
            (value,) = local_lowering.local(ctx.replace(avals_in=[aval]), pack, value)
            aval = aval.update(dtype=carrier_dtype)
        values.append(value)
        avals.append(aval)
    aval_out = ctx.avals_out[0]
    packed = aval_out.update(dtype=carrier_dtype)
    (out,) = lower(ctx.replace(avals_in=avals, avals_out=[packed]), *values)
    return local_lowering.local(ctx.replace(avals_in=[packed]), unpack, out)
