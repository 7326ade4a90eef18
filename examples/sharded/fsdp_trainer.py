"""Trains the transformer with explicit FSDP: `shard_map`, and calls of collectives."""

import abc
import functools
from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
import optax
from common import transformer
from common.trainer import AXIS, State, Trainer, Tree, checkpoint
from jax.sharding import PartitionSpec

from sharded import fsdp, levels, prefetch


class ShardedTrainer(Trainer):
    """The base of trainers with explicit collectives, including those of mixtures of experts.

    The programs are calls of `shard_map`. The functions in them see only one device's part of each
    array. A subclass draws the first state in `_init`.
    """

    def __init__(
        self,
        sizes: transformer.Sizes,
        dtype: jnp.dtype,
        optimizer: optax.GradientTransformation,
        collectives: fsdp.Collectives,
    ):
        """Lays out the parameters outside the layers.

        Args:
          sizes: sizes of the model.
          dtype: dtype of activations, and of parameters and gradients in communication.
          optimizer: an Optax optimizer.
          collectives: `jax_cxl`, or another namespace with collectives.
        """
        super().__init__(sizes, dtype, optimizer, fsdp.device_mesh())
        self._collectives = collectives
        self._copies = getattr(collectives, "copies", 1)
        self._outer_unit = self._unit(lambda key: transformer.init_embedding(key, sizes))

    def _unit(self, init: Callable[[jax.Array], Tree]) -> fsdp.Unit:
        """Returns the layout of parameters that `init` draws from a key."""
        template = jax.eval_shape(lambda: init(jax.random.key(0)))
        return fsdp.Unit(template, self._mesh.size, self._copies)

    def _vector(self, *shape: int) -> jax.ShapeDtypeStruct:
        """Returns the type of an array that joins the shards of all devices.

        `copies` devices have equal shards. So the last dimension is `copies` times as long as in
        `shape`, which counts equal shards once.
        """
        return jax.ShapeDtypeStruct((*shape[:-1], shape[-1] * self._copies), jnp.float32)

    def _define(self, layers: Tree, check_vma: bool) -> tuple[Callable[..., Any], State]:
        """Defines the programs.

        Args:
          layers: types of the parameters of the layers.
          check_vma: as in `jax.shard_map`.

        Returns:
          `jax.shard_map` for this mesh, to define further programs, and the partition of the state.
        """
        vectors = {"outer": self._vector(self._outer_unit.padded), "layers": layers}
        state = fsdp.partition(State(vectors, jax.eval_shape(self._optimizer.init, vectors)))
        rows, everywhere = PartitionSpec(AXIS), PartitionSpec()
        on_devices = functools.partial(jax.shard_map, mesh=self._mesh, check_vma=check_vma)
        self.init = jax.jit(on_devices(self._init, in_specs=everywhere, out_specs=state))
        self.step = jax.jit(
            on_devices(self._step, in_specs=(state, rows), out_specs=(state, everywhere)),
            donate_argnums=0,
        )
        self.evaluate = jax.jit(
            on_devices(self._evaluate, in_specs=(state.parameters, rows), out_specs=everywhere)
        )
        return on_devices, state

    @abc.abstractmethod
    def _init(self, seed: jax.Array) -> State:
        """Draws the state of this device."""

    def _outer(self, parameters: Tree) -> transformer.Parameters:
        return self._outer_unit.gather(parameters, self._collectives, self._dtype)

    def _sum(self, x: jax.Array) -> jax.Array:
        return self._collectives.psum(x, AXIS)


class FsdpTrainer(ShardedTrainer):
    """Every parameter is sharded. Each layer is a unit, and so is the embedding.

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
            gradients of a layer while its neighbor computes (prefetch.py). `collectives` needs
            start functions then.
        """
        super().__init__(sizes, dtype, optimizer, collectives)
        self._prefetch = prefetch_layers
        self._layer_unit = self._unit(lambda key: transformer.init_layer(key, sizes))
        self.parameter_count = self._outer_unit.size + sizes.layers * self._layer_unit.size
        layers: Any = [self._vector(self._layer_unit.padded)] * sizes.layers
        if prefetch_layers:
            layers = self._vector(sizes.layers, self._layer_unit.padded)
        self._define(layers, check_vma=True)

    def _init(self, seed: jax.Array) -> State:
        """Draws the parameters: each device draws a whole unit and keeps its shard of it."""
        keys = jax.random.split(jax.random.key(seed), 1 + self._sizes.layers)

        def layer(key: jax.Array) -> jax.Array:
            return self._layer_unit.shard(transformer.init_layer(key, self._sizes))

        # Compiling a loop over all layers takes only as long as compiling one layer.
        layers = jax.lax.map(layer, keys[1:])
        outer = self._outer_unit.shard(transformer.init_embedding(keys[0], self._sizes))
        parameters = {"outer": outer, "layers": layers if self._prefetch else list(layers)}
        return State(parameters, self._optimizer.init(parameters))

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

    def _sum_copies(self, gradients: Tree) -> Tree:
        if self._copies == 1:
            return gradients
        return cast(levels.Sharding, self._collectives).sum_copies(gradients, AXIS)
