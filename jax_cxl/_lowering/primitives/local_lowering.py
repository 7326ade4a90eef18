"""Parts of lowering rules that do not communicate."""

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.interpreters import mlir


def fence(ctx, avals, *values: Any) -> Sequence:
    """Returns the values unchanged, and keeps XLA from fusing operations across this point.

    On GPUs XLA fuses a custom call with a slice before it, or with an update after it. Then XLA
    would execute a call with side effects twice.
    """
    if not values:
        return values
    ctx = ctx.replace(avals_in=avals, avals_out=avals)
    barrier = mlir.lower_fun(lambda *v: lax.optimization_barrier(v), multiple_results=True)
    return barrier(ctx, *values)


def local(ctx, function, *operands) -> Sequence:
    """Lowers a function that needs no communication."""
    return mlir.lower_fun(function, multiple_results=False)(ctx, *operands)


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
            (value,) = local(ctx.replace(avals_in=[aval]), pack, value)
            aval = aval.update(dtype=carrier_dtype)
        values.append(value)
        avals.append(aval)
    aval_out = ctx.avals_out[0]
    packed = aval_out.update(dtype=carrier_dtype)
    (out,) = lower(ctx.replace(avals_in=avals, avals_out=[packed]), *values)
    return local(ctx.replace(avals_in=[packed]), unpack, out)
