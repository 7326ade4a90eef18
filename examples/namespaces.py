"""Where the collectives of the example come from, other than from `jax_cxl`."""

import dataclasses
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax import lax


@dataclasses.dataclass(frozen=True)
class Started:
    """The result of a collective that XLA itself runs beside what does not depend on it."""

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
    """Start and done, from the collectives that a subclass has."""

    def all_gather_start(self: _Whole, x: jax.Array, axis_name: str, *, tiled: bool) -> Started:
        return Started(self.all_gather(x, axis_name, tiled=tiled))

    def psum_scatter_start(self: _Whole, x: jax.Array, axis_name: str, *, tiled: bool) -> Started:
        return Started(self.psum_scatter(x, axis_name, tiled=tiled))


class Lax(_Halves):
    """JAX's own collectives.

    Of these XLA makes pairs of start and done itself, and puts them around what does not depend on
    them (on GPUs its latency-hiding scheduler does, --xla_gpu_enable_latency_hiding_scheduler).
    """

    all_gather = staticmethod(lax.all_gather)
    psum = staticmethod(lax.psum)
    psum_scatter = staticmethod(lax.psum_scatter)


class StandIns(_Halves):
    """A measuring device, of no use for training: local copies in place of the collectives.

    They give arrays of the right shapes with wrong contents, in memory as the collectives do. What
    a step takes longer with the collectives than with these is the communication that is not
    hidden. The sums of a few scalars stay what they are.
    """

    def __init__(self, collectives: Any):
        """Keeps `collectives` for the scalars."""
        self.psum = collectives.psum

    def all_gather(self, x: jax.Array, axis_name: str, *, tiled: bool) -> jax.Array:
        assert tiled
        # The barriers keep XLA from computing without the array, or only the part that is used.
        return lax.optimization_barrier(jnp.tile(x, lax.axis_size(axis_name)))

    def psum_scatter(self, x: jax.Array, axis_name: str, *, tiled: bool) -> jax.Array:
        assert tiled
        part = x.shape[0] // lax.axis_size(axis_name)
        return lax.optimization_barrier(x)[:part]
