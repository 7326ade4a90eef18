"""Trains the transformer with FSDP that is written out: `shard_map` and explicit collectives."""

import functools
from collections.abc import Callable
from typing import Any, cast

import fsdp
import jax
import jax.numpy as jnp
import levels
import optax
import prefetch
import transformer
from jax.sharding import PartitionSpec
from trainer import AXIS, State, Trainer, Tree, checkpoint


class FsdpTrainer(Trainer):
    """The programs are calls of `shard_map`; their functions see the parts of one device.

    The parameters are {"outer": shard, "layers": [shard, ...]}, a float32 vector per unit; with
    prefetching "layers" is one array with a row for each layer. `parameter_count` is without
    padding.
    """

    def __init__(
        self,
        sizes: transformer.Sizes,
        dtype: jnp.dtype,
        optimizer: optax.GradientTransformation,
        collectives: fsdp.Collectives,
        prefetch_layers: bool = False,
    ):
        """Lays out the state and defines the programs.

        Args:
            sizes: sizes of the model.
            dtype: dtype of activations, and of parameters and gradients in communication.
            optimizer: an Optax optimizer.
            collectives: `jax_cxl`, or another namespace with collectives.
            prefetch_layers: whether to scan over the layers, and to communicate the parameters and
                gradients of a layer while its neighbour computes (prefetch.py). `collectives` needs
                start functions then.
        """
        super().__init__(sizes, dtype, optimizer, fsdp.device_mesh())
        self._prefetch = prefetch_layers
        self._collectives = collectives
        self._copies = getattr(collectives, "copies", 1)

        def unit(init: Callable[[jax.Array, transformer.Sizes], Tree]) -> fsdp.Unit:
            template = jax.eval_shape(lambda: init(jax.random.key(0), sizes))
            return fsdp.Unit(template, self._mesh.size, self._copies)

        self._outer_unit = unit(transformer.init_embedding)
        self._layer_unit = unit(transformer.init_layer)
        self.parameter_count = self._outer_unit.size + sizes.layers * self._layer_unit.size

        def vector(*shape: int) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct((*shape[:-1], shape[-1] * self._copies), jnp.float32)

        layers: Any = [vector(self._layer_unit.padded)] * sizes.layers
        if prefetch_layers:
            layers = vector(sizes.layers, self._layer_unit.padded)
        vectors = {"outer": vector(self._outer_unit.padded), "layers": layers}
        state = fsdp.partition(State(vectors, jax.eval_shape(optimizer.init, vectors)))
        rows, everywhere = PartitionSpec(AXIS), PartitionSpec()

        # The functions below run on each device, with its shards and its rows.
        on_devices = functools.partial(jax.shard_map, mesh=self._mesh, check_vma=True)
        self.init = jax.jit(on_devices(self._init, in_specs=everywhere, out_specs=state))
        self.step = jax.jit(
            on_devices(self._step, in_specs=(state, rows), out_specs=(state, everywhere)),
            donate_argnums=0,
        )
        self.evaluate = jax.jit(
            on_devices(self._evaluate, in_specs=(state.parameters, rows), out_specs=everywhere)
        )

    def _init(self, seed: jax.Array) -> State:
        """Draws the parameters: each device draws a whole unit and keeps its shard of it."""
        keys = jax.random.split(jax.random.key(seed), 1 + self._sizes.layers)

        def layer(key: jax.Array) -> jax.Array:
            return self._layer_unit.shard(transformer.init_layer(key, self._sizes))

        layers = jax.lax.map(layer, keys[1:]) if self._prefetch else [layer(k) for k in keys[1:]]
        outer = self._outer_unit.shard(transformer.init_embedding(keys[0], self._sizes))
        parameters = {"outer": outer, "layers": layers}
        return State(parameters, self._optimizer.init(parameters))

    def _outer(self, parameters: Tree) -> transformer.Parameters:
        return self._outer_unit.gather(parameters, self._collectives, self._dtype)

    def _apply_layers(self, parameters: Tree, x: jax.Array) -> jax.Array:
        if self._prefetch:
            shards = parameters.astype(self._dtype)
            halves = cast(prefetch.Collectives, self._collectives)
            return prefetch.stack(self._apply_flat, AXIS, halves)(shards, x)

        @checkpoint
        def apply_layer(shard: jax.Array, x: jax.Array) -> jax.Array:
            layer = self._layer_unit.gather(shard, self._collectives, self._dtype)
            return transformer.apply_layer(layer, x, self._sizes.heads)

        for shard in parameters:
            x = apply_layer(shard, x)
        return x

    def _apply_flat(self, flat: jax.Array, x: jax.Array) -> jax.Array:
        """Computes the layer whose parameters are in `flat`."""
        return transformer.apply_layer(self._layer_unit.unpack(flat), x, self._sizes.heads)

    def _sum(self, x: jax.Array) -> jax.Array:
        return self._collectives.psum(x, AXIS)

    def _sum_copies(self, gradients: Tree) -> Tree:
        if self._copies == 1:
            return gradients
        return cast(levels.Sharding, self._collectives).sum_copies(gradients, AXIS)
