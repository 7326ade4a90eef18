"""A stack of equal layers under FSDP. Each layer is gathered while the layer before it computes.

The layers run under `lax.scan`, whose body computes one layer and meanwhile gathers the next:

    forward    layer l computes      | layer l+1 is gathered
    backward   layer l is computed   | layer l-1 is gathered
               again, with gradients | the gradients of layer l+1 are summed and scattered

Each collective starts and ends in the same iteration, so that the loop carries complete arrays
only. All collectives except the first gather and the last scatter run beside the computation of a
layer. At most two layers, and the gradients of one, exist whole at a time. JAX's derivative of the
forward scan would not have this order: it would wait for each collective right after its start. So
the stack has a custom derivative.
"""

from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax import lax

# (A layer's parameters as one vector, its input) -> its output.
Layer = Callable[[jax.Array, jax.Array], jax.Array]


class Future(Protocol):
    """A collective that has been started: `jax_cxl.Future`."""

    def tie(self, h: Any) -> Any: ...

    def done(self, after: Any = None) -> jax.Array: ...


class Collectives(Protocol):
    """The functions that the stack needs; `jax_cxl` has them."""

    def start(
        self, operation: Callable[..., jax.Array], /, *args: Any, **kwargs: Any
    ) -> Future: ...

    def all_gather(self, x: jax.Array, axis_name: str, *, tiled: bool) -> jax.Array: ...

    def psum_scatter(self, x: jax.Array, axis_name: str, *, tiled: bool) -> jax.Array: ...


def stack(layer: Layer, axis: str, collectives: Collectives) -> Callable:
    """Returns a function that applies a stack of layers.

    Args:
      layer: function that computes one layer.
      axis: mesh axis over which the parameters are sharded.
      collectives: `jax_cxl`, or a stand-in.

    Returns:
      (shards, x) -> y, differentiable in reverse. `shards` has a row for each layer, and at least
      two rows. A row is this device's piece of the layer's vector, in the dtype of the
      communication.
    """

    def gather(shard: jax.Array) -> Future:
        return collectives.start(collectives.all_gather, shard, axis, tiled=True)

    def scatter(gradient: jax.Array) -> Future:
        return collectives.start(collectives.psum_scatter, gradient, axis, tiled=True)

    def pull_back(vector: jax.Array, x: jax.Array, ct: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns the gradients of a layer's vector (not summed over devices) and of its input."""
        return jax.vjp(layer, vector, x)[1](ct)

    def forward(shards: jax.Array, x: jax.Array) -> tuple[jax.Array, Any]:
        def step(carry, next_shard):
            x, vector = carry
            future = gather(next_shard)
            x = future.tie(x)
            y = layer(vector, x)
            return (y, future.done(after=y)), x

        # The first gather runs beside nothing but the preparations of the loop.
        future = gather(shards[0])
        rest = future.tie(shards[1:])
        (x, vector), inputs = lax.scan(step, (x, future.done(after=rest)), rest)
        # The backward pass begins with the last layer, so keep that layer.
        return layer(vector, x), (shards, inputs, x, vector)

    def backward(saved: Any, ct: jax.Array) -> tuple[jax.Array, jax.Array]:
        shards, inputs, x, vector = saved

        # While the last layer computes, nothing is scattered yet. The gather here depends on no
        # earlier result: without the barrier XLA would start it before the first layer's gather.
        shard, ct = lax.optimization_barrier((shards[-2], ct))
        future = gather(shard)
        x, ct = future.tie((x, ct))
        gradient, ct = pull_back(vector, x, ct)
        vector = future.done(after=(gradient, ct))

        def step(carry, operands):
            ct, vector, next_gradient = carry
            previous_shard, x = operands
            gathering, scattering = gather(previous_shard), scatter(next_gradient)
            x, ct = scattering.tie(gathering.tie((x, ct)))
            gradient, ct = pull_back(vector, x, ct)
            previous_vector = gathering.done(after=(gradient, ct))
            return (ct, previous_vector, gradient), scattering.done(after=(gradient, ct))

        (ct, vector, gradient), scattered = lax.scan(
            step, (ct, vector, gradient), (shards[:-2], inputs[1:]), reverse=True
        )

        # While the first layer computes, nothing is left to gather.
        future = scatter(gradient)
        x, ct = future.tie((inputs[0], ct))
        gradient, ct = pull_back(vector, x, ct)
        second = future.done(after=(gradient, ct))
        first = scatter(gradient).done()
        return jnp.concatenate([first[None], second[None], scattered]), ct

    @jax.custom_vjp
    def apply(shards: jax.Array, x: jax.Array) -> jax.Array:
        return forward(shards, x)[0]

    apply.defvjp(forward, backward)
    return apply
