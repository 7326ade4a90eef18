"""Namespaces with the collectives that the example needs, in place of `jax_cxl`."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


@dataclasses.dataclass(frozen=True)
class Started:
    """Has the methods of `jax_cxl.Future`, for a collective that was called as a whole.

    The methods do nothing, because XLA itself overlaps the collective with operations that do not
    need its result.
    """

    value: jax.Array

    def tie(self, h: Any) -> Any:
        return h

    def done(self, after: Any = None) -> jax.Array:
        del after
        return self.value


def _start(operation: Callable[..., jax.Array], *args: Any, **kwargs: Any) -> Started:
    return Started(operation(*args, **kwargs))


class Lax:
    """JAX's own collectives.

    XLA itself splits these into start and done, and puts operations that do not depend on them in
    between (on GPUs with --xla_gpu_enable_latency_hiding_scheduler).
    """

    start = staticmethod(_start)
    all_gather = staticmethod(lax.all_gather)
    psum = staticmethod(lax.psum)
    psum_scatter = staticmethod(lax.psum_scatter)


class StandIns:
    """Local copies in place of the collectives, for measurements only.

    They return arrays of the right shapes with wrong values. The time of a step with the
    collectives minus its time with these is the communication that is not hidden. `psum`, which
    sums a few scalars, stays a collective.
    """

    start = staticmethod(_start)

    def __init__(self, collectives: Any):
        """Takes `psum` from `collectives`."""
        self.psum = collectives.psum

    def all_gather(self, x: jax.Array, axis_name: str, *, tiled: bool) -> jax.Array:
        assert tiled
        # The barriers keep XLA from dropping the array, or the part of it that is not used.
        return lax.optimization_barrier(jnp.tile(x, lax.axis_size(axis_name)))

    def psum_scatter(self, x: jax.Array, axis_name: str, *, tiled: bool) -> jax.Array:
        assert tiled
        part = x.shape[0] // lax.axis_size(axis_name)
        return lax.optimization_barrier(x)[:part]
