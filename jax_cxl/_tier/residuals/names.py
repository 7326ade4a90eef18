"""Finds the values of a function that `jax.ad_checkpoint.checkpoint_name` has named."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.extend import core

from jax_cxl import _compat


def named(jaxpr: Any, calls: int = 1) -> Iterator[tuple[str, Any, int]]:
    """Yields name and type of each named value, and how many times the function computes it."""
    for eqn in jaxpr.eqns:
        if (name := _compat.checkpoint.name_of(eqn)) is not None:
            yield name, eqn.outvars[0].aval, calls
        inner = calls * eqn.params["length"] if eqn.primitive.name == "scan" else calls
        for each in _inner(eqn):
            yield from named(each, inner)


def replace(jaxpr: Any, replaced: Callable[[Any, str], Any]) -> Any:
    """Returns a jaxpr with other equations in place of those that name values."""

    def of(x: Any) -> Any:
        if isinstance(x, core.ClosedJaxpr) and not isinstance(x, core.Jaxpr):
            return x.replace(jaxpr=replace(x.jaxpr, replaced))
        if isinstance(x, core.Jaxpr):
            return replace(x, replaced)
        if isinstance(x, tuple | list):
            return type(x)(map(of, x)) if any(map(_is_jaxpr, x)) else x
        return x

    eqns = []
    for eqn in jaxpr.eqns:
        if (name := _compat.checkpoint.name_of(eqn)) is not None:
            eqns.append(replaced(eqn, name))
        elif any(True for _ in _inner(eqn)):
            eqns.append(eqn.replace(params={key: of(x) for key, x in eqn.params.items()}))
        else:
            eqns.append(eqn)
    return jaxpr.replace(eqns=eqns)


def _inner(eqn: Any) -> Iterator[Any]:
    for x in eqn.params.values():
        for each in x if isinstance(x, tuple | list) else (x,):
            if _is_jaxpr(each):
                yield getattr(each, "jaxpr", each)


def _is_jaxpr(x: Any) -> bool:
    return isinstance(x, core.Jaxpr | core.ClosedJaxpr)


def bytes_of(aval: Any, sharding: jax.sharding.Sharding | None) -> int:
    """Returns the bytes of a value on each device."""
    if jax.dtypes.issubdtype(aval.dtype, jax.dtypes.extended):
        raise TypeError(
            f"an array of {aval.dtype} cannot be offloaded: name its key data (jax.random.key_data)"
            " instead"
        )
    bits = jax.dtypes.itemsize_bits(aval.dtype)
    if bits % 8:
        raise TypeError(
            f"an array of {aval.dtype} cannot be offloaded: convert it to elements of whole bytes,"
            " such as int8, and name the result instead"
        )
    shape = aval.shape if sharding is None else sharding.shard_shape(aval.shape)
    return math.prod(shape) * bits // 8
