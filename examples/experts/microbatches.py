"""Layers of experts for two micro-batches: one communicates while the other one computes.

    computation      attention 0     attention 1    experts 0                 experts 1
    communication    combine 1 of    dispatch 0     dispatch 1, parameters    combine 0
                     the layer before               of the next layer

The backward pass goes through this in reverse: the transpose of a combine is a dispatch of
cotangents, and the transpose of a dispatch is a combine with weights 1. JAX's own derivative of the
forward pass would wait for each exchange right after its start. So the layers have a custom
derivative.

The choices and weights of a micro-batch are gathered before its dispatch starts to move rows. After
the start, these short calls would wait for the rows.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from common.trainer import AXIS
from jax import lax

from experts import exchanges

# What comes before the experts: (parameters of the layer as one vector, x) -> ((x, tokens (T, D),
# weights (T, k)), choices (T, k)). Both x have the same shape.
Before = Callable[[jax.Array, jax.Array], tuple[tuple[jax.Array, ...], jax.Array]]
# The experts: (matrices, rows (experts of a rank, capacity, D)) -> results, as many as rows.
Experts = Callable[[jax.Array, jax.Array], jax.Array]


@dataclasses.dataclass(frozen=True)
class _Layers:
    """The layers of a model.

    Attributes:
      before, experts: the two parts of a layer.
      sizes: of one micro-batch.
    """

    before: Before
    experts: Experts
    sizes: exchanges.Sizes

    def forward(self, shards: list, matrices: list, x: jax.Array) -> tuple[jax.Array, Any]:
        """Returns the result, and for each layer what the backward pass needs."""
        x0, x1 = jnp.split(x, 2)
        saved = []
        vector = self._gather(shards[0]).done()
        combine1: Any = None  # of the previous layer
        for number, layer in enumerate(matrices):
            if combine1 is not None:
                x0 = combine1.tie(x0)
            first = _Half(self, vector, x0)
            if combine1 is not None:
                x1 += combine1.done(after=first.tokens).reshape(x1.shape)
            dispatch0 = first.dispatch()
            second = _Half(self, vector, dispatch0.tie(x1))
            rows0, handle0 = dispatch0.done(after=second.tokens)
            dispatch1 = second.dispatch()
            rows0 = dispatch1.tie(rows0)
            if number + 1 < len(shards):
                # Without the barrier XLA would start all gathers before the first layer.
                shard, rows0 = lax.optimization_barrier((shards[number + 1], rows0))
                gather = self._gather(shard)
                rows0 = gather.tie(rows0)
            y0 = first.compute(layer, rows0, handle0)
            rows1, handle1 = dispatch1.done(after=y0)
            combine0 = _combine_start(y0, handle0)
            y1 = second.compute(layer, combine0.tie(rows1), handle1)
            x0 = first.x + combine0.done(after=y1).reshape(x0.shape)
            if number + 1 < len(shards):
                vector = gather.done(after=y1)
            combine1, x1 = _combine_start(y1, handle1), second.x
            saved.append(((first.pulls, handle0), (second.pulls, handle1)))
        x1 += combine1.done().reshape(x1.shape)
        return jnp.concatenate([x0, x1]), saved

    def backward(self, saved: list, ct: jax.Array) -> tuple[list, list, jax.Array]:
        """Returns the gradients of the shards, the matrices and x."""
        ct0, ct1 = jnp.split(ct, 2)
        of_shards, of_matrices = [], []
        combine1 = _send_cotangents(ct1, saved[-1][1][1])
        ct0 = combine1.tie(ct0)
        scatter: Any = None  # of the gradients of the layer above
        for number in reversed(range(len(saved))):
            (pulls0, handle0), (pulls1, handle1) = saved[number]
            combine0 = _send_cotangents(ct0, handle0)
            ct_y1 = combine0.tie(combine1.done(after=ct0)[0])
            if scatter is not None:
                ct_y1 = scatter.tie(ct_y1)
            layer1, ct_rows1, ct_weights1 = pulls1.experts(ct_y1)
            ct_y0 = combine0.done(after=(layer1, ct_rows1))[0]
            if scatter is not None:
                of_shards.append(scatter.done(after=(layer1, ct_rows1)))
            dispatch1 = _combine_start(ct_rows1, handle1)
            layer0, ct_rows0, ct_weights0 = pulls0.experts(dispatch1.tie(ct_y0))
            of_matrices.append(layer0 + layer1)
            # The barriers put the short calls between two moves of rows. A short call that comes
            # while a move is under way would wait for the move.
            ct_tokens1, ct_weights0, ct_weights1 = lax.optimization_barrier(
                (dispatch1.done(after=(layer0, ct_rows0)), ct_weights0, ct_weights1)
            )
            (ct_weights0,) = pulls0.weights(ct_weights0)
            (ct_weights1,) = pulls1.weights(ct_weights1)
            ct_rows0, ct_weights0, ct_weights1 = lax.optimization_barrier(
                (ct_rows0, ct_weights0, ct_weights1)
            )
            dispatch0 = _combine_start(ct_rows0, handle0)
            vector1, ct1 = pulls1.before((ct1, dispatch0.tie(ct_tokens1), ct_weights1))
            ct_tokens0 = dispatch0.done(after=ct1)
            if number > 0:
                combine1 = _send_cotangents(ct1, saved[number - 1][1][1])
                ct_tokens0 = combine1.tie(ct_tokens0)
            vector0, ct0 = pulls0.before((ct0, ct_tokens0, ct_weights0))
            scatter = _start("psum_scatter", vector0 + vector1, AXIS, tiled=True)
        of_shards.append(scatter.done())
        return of_shards[::-1], of_matrices[::-1], jnp.concatenate([ct0, ct1])

    def _gather(self, shard: jax.Array) -> Any:
        return _start("all_gather", shard, AXIS, tiled=True)


@dataclasses.dataclass
class _Pulls:
    """The functions by which `jax.vjp` differentiates the parts of a layer, for one micro-batch."""

    before: Any
    weights: Any
    experts: Any = None


jax.tree_util.register_dataclass(_Pulls, ["before", "weights", "experts"], [])


class _Half:
    """One micro-batch in a layer.

    Attributes:
      x: what the result of the experts is added to.
      tokens: what the experts get.
      pulls: the derivatives of the parts that have been computed.
    """

    def __init__(self, layers: _Layers, vector: jax.Array, x: jax.Array):
        """Computes the part before the experts, and gathers the weights."""
        self._layers = layers
        (self.x, tokens, weights), before, self._chosen = jax.vjp(
            layers.before, vector, x, has_aux=True
        )
        everyone, to_weights = jax.vjp(_gather_weights, weights)
        self.tokens, self._weights = lax.optimization_barrier((tokens, everyone))
        self.pulls = _Pulls(before, to_weights)

    def dispatch(self) -> Any:
        """Starts to send the tokens to the experts."""
        sizes = self._layers.sizes
        return _start(
            *("moe_dispatch", self.tokens, self._chosen, sizes.axis),
            num_experts=sizes.experts,
            capacity=sizes.capacity,
        )

    def compute(self, matrices: jax.Array, rows: jax.Array, handle: Any) -> jax.Array:
        """Returns the weighted results of the experts."""

        def weighted(matrices, rows, everyone):
            y = self._layers.experts(matrices, rows)
            index = jnp.where(handle.assignment < 0, len(everyone), handle.assignment)
            by = everyone.at[index].get(mode="fill", fill_value=0).reshape(y.shape[:2])
            return (by[..., None] * y).astype(y.dtype)

        y, self.pulls.experts = jax.vjp(weighted, matrices, rows, self._weights)
        return y


def apply(
    before: Before,
    experts: Experts,
    sizes: exchanges.Sizes,
    shards: list,
    matrices: list,
    x: jax.Array,
) -> jax.Array:
    """Applies layers to (rows, T, D), differentiable in reverse.

    Args:
      before: the part of a layer before its experts.
      experts: the experts of a layer.
      sizes: of one micro-batch.
      shards: this device's piece of each layer's parameters outside its experts, which form one
        vector (fsdp.py), in the dtype of the communication.
      matrices: this device's experts of each layer.
      x: the input, with an even number of rows.
    """
    if x.shape[0] % 2:
        raise ValueError(
            f"Two micro-batches need an even number of sequences on each device, got {x.shape[0]}."
        )
    layers = _Layers(before, experts, sizes)

    @jax.custom_vjp
    def run(shards, matrices, x):
        return layers.forward(shards, matrices, x)[0]

    run.defvjp(layers.forward, layers.backward)
    return run(shards, matrices, x)


def _jax_cxl() -> Any:
    import jax_cxl

    return jax_cxl


def _start(operation: str, *args: Any, **kwargs: Any) -> Any:
    return _jax_cxl().start(getattr(_jax_cxl(), operation), *args, **kwargs)


def _send_cotangents(ct: jax.Array, handle: Any) -> Any:
    return _start("moe_dispatch", ct.reshape(-1, ct.shape[-1]), handle)


def _combine_start(y: jax.Array, handle: Any) -> Any:
    return _start("moe_combine", y, None, handle)


def _gather_weights(weights: jax.Array) -> jax.Array:
    return _jax_cxl().all_gather(weights, AXIS, tiled=True).ravel()
