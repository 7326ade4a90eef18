"""Namespaces with the collectives that the example needs, in place of `jax_cxl`."""

import dataclasses
from typing import Any, Protocol

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


class _Whole(Protocol):
    def all_gather(self, x: jax.Array, axis_name: str, *, tiled: bool) -> jax.Array: ...

    def psum_scatter(self, x: jax.Array, axis_name: str, *, tiled: bool) -> jax.Array: ...


class _Halves:
    """The base of namespaces that have no start functions: makes these from whole collectives."""

    def all_gather_start(self: _Whole, x: jax.Array, axis_name: str, *, tiled: bool) -> Started:
        return Started(self.all_gather(x, axis_name, tiled=tiled))

    def psum_scatter_start(self: _Whole, x: jax.Array, axis_name: str, *, tiled: bool) -> Started:
        return Started(self.psum_scatter(x, axis_name, tiled=tiled))


class Lax(_Halves):
    """JAX's own collectives.

    XLA itself splits these into start and done, and puts operations that do not depend on them in
    between (on GPUs with --xla_gpu_enable_latency_hiding_scheduler).
    """

    all_gather = staticmethod(lax.all_gather)
    psum = staticmethod(lax.psum)
    psum_scatter = staticmethod(lax.psum_scatter)


class StandIns(_Halves):
    """Local copies in place of the collectives, for measurements only.

    They return arrays of the right shapes with wrong values. The time of a step with the
    collectives minus its time with these is the communication that is not hidden. `psum`, which
    sums a few scalars, stays a collective.
    """

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
