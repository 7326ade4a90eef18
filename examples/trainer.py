"""Trains the transformer with FSDP: connects the model and the collectives."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import fsdp
import jax
import jax.numpy as jnp
import numpy as np
import optax
import prefetch
import transformer
from jax.sharding import NamedSharding, PartitionSpec

Tree = Any

_GRADIENT_NORM = 1.0


class State(NamedTuple):
    """The training state: vectors sharded over the devices, and the optimizer's step counters.

    Attributes:
        parameters: {"outer": shard, "layers": [shard, ...]}, a float32 vector per unit; with
            prefetching "layers" is one array with a row for each layer.
        optimizer: Optax's state, with vectors of the same shapes.
    """

    parameters: Tree
    optimizer: Tree


class Trainer:
    """Three programs over all devices, each one call of `shard_map`.

    Attributes:
        init: seed, () int32 -> State.
        step: State (donated), tokens -> (State, {"train_loss", "gradient_norm"}), both () float32;
            the loss is the loss before the step.
        evaluate: parameters, tokens -> mean loss in nats per byte, () float32.
        parameter_count: parameters of the model, without padding.
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
        self._sizes = sizes
        self._prefetch = prefetch_layers
        self._dtype = dtype
        self._optimizer = optimizer
        self._collectives = collectives
        self._mesh = fsdp.device_mesh()

        def unit(init: Callable[[jax.Array, transformer.Sizes], Tree]) -> fsdp.Unit:
            template = jax.eval_shape(lambda: init(jax.random.key(0), sizes))
            return fsdp.Unit(template, self._mesh.size)

        self._outer = unit(transformer.init_embedding)
        self._layer = unit(transformer.init_layer)
        self.parameter_count = self._outer.size + sizes.layers * self._layer.size

        def vector(*shape: int) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(shape, jnp.float32)

        layers: Any = [vector(self._layer.padded)] * sizes.layers
        if prefetch_layers:
            layers = vector(sizes.layers, self._layer.padded)
        vectors = {"outer": vector(self._outer.padded), "layers": layers}
        state = fsdp.partition(State(vectors, jax.eval_shape(optimizer.init, vectors)))
        rows, everywhere = PartitionSpec(fsdp.AXIS), PartitionSpec()

        # The functions below run on each device, with its shards and its rows.
        on_devices = functools.partial(jax.shard_map, mesh=self._mesh, check_vma=True)
        self.init = jax.jit(on_devices(self._init, in_specs=everywhere, out_specs=state))
        self.step: Any = jax.jit(
            on_devices(self._step, in_specs=(state, rows), out_specs=(state, everywhere)),
            donate_argnums=0,
        )
        self.evaluate: Any = jax.jit(
            on_devices(self._evaluate, in_specs=(state.parameters, rows), out_specs=everywhere)
        )

    def compile(self, state: State, tokens: jax.Array, held_out: jax.Array) -> None:
        """Compiles `step` and `evaluate` for arguments of these shapes, and replaces them."""
        self.step = self.step.lower(state, tokens).compile()
        self.evaluate = self.evaluate.lower(state.parameters, held_out).compile()

    def put(self, tokens: np.ndarray) -> jax.Array:
        """Spreads a batch over the devices.

        Args:
            tokens: (rows, T + 1), uint8, the same on all processes.

        Returns:
            (rows rounded up to a multiple of the devices, T + 1), int32. The added rows contain -1,
            which does not count, so that any number of devices computes the same loss.
        """
        padding = -len(tokens) % self._mesh.size
        padded = np.pad(tokens.astype(np.int32), ((0, padding), (0, 0)), constant_values=-1)
        sharding = NamedSharding(self._mesh, PartitionSpec(fsdp.AXIS))
        return jax.make_array_from_callback(padded.shape, sharding, lambda index: padded[index])

    def _init(self, seed: jax.Array) -> State:
        """Draws the parameters: each device draws a whole unit and keeps its shard of it."""
        keys = jax.random.split(jax.random.key(seed), 1 + self._sizes.layers)

        def layer(key: jax.Array) -> jax.Array:
            return self._layer.shard(transformer.init_layer(key, self._sizes))

        layers = jax.lax.map(layer, keys[1:]) if self._prefetch else [layer(k) for k in keys[1:]]
        outer = self._outer.shard(transformer.init_embedding(keys[0], self._sizes))
        parameters = {"outer": outer, "layers": layers}
        return State(parameters, self._optimizer.init(parameters))

    def _nats(self, parameters: Tree, tokens: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Sums the loss over this device's rows.

        Args:
            parameters: this device's shards.
            tokens: (rows, T + 1), int32; -1 does not count.

        Returns:
            The sum in nats and the number of summed bytes, both () float32.
        """

        # Save only products of activations and weights for the backward pass. Everything else is
        # cheap to repeat. The backward pass gathers each layer again, so that only one or two
        # layers exist whole at a time.
        @functools.partial(
            jax.checkpoint, policy=jax.checkpoint_policies.dots_with_no_batch_dims_saveable
        )
        def apply_layer(shard: jax.Array, x: jax.Array) -> jax.Array:
            layer = self._layer.gather(shard, self._collectives, self._dtype)
            return transformer.apply_layer(layer, x, self._sizes.heads)

        outer = self._outer.gather(parameters["outer"], self._collectives, self._dtype)
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        x = transformer.embed(outer, inputs)
        if self._prefetch:
            shards = parameters["layers"].astype(self._dtype)
            halves = cast(prefetch.Collectives, self._collectives)
            x = prefetch.stack(self._apply_flat, fsdp.AXIS, halves)(shards, x)
        else:
            for shard in parameters["layers"]:
                x = apply_layer(shard, x)
        counts = targets >= 0
        nats = jnp.where(counts, transformer.nats(outer, x, targets), 0)
        return jnp.sum(nats), jnp.sum(counts, dtype=jnp.float32)

    def _apply_flat(self, flat: jax.Array, x: jax.Array) -> jax.Array:
        """Computes the layer whose parameters are in `flat`."""
        return transformer.apply_layer(self._layer.unpack(flat), x, self._sizes.heads)

    def _evaluate(self, parameters: Tree, tokens: jax.Array) -> jax.Array:
        """Returns the mean loss over the rows of all devices."""
        nats, count = self._nats(parameters, tokens)
        nats, count = self._collectives.psum(jnp.stack([nats, count]), fsdp.AXIS)
        return nats / count

    def _step(self, state: State, tokens: jax.Array) -> tuple[State, dict[str, jax.Array]]:
        """Takes one step of the optimizer."""
        differentiate = jax.value_and_grad(self._nats, has_aux=True)
        (nats, count), gradients = differentiate(state.parameters, tokens)
        # The gradients are sums over all devices already, because the transpose of a gather sums.
        # The loss is this device's loss.
        nats, count = self._collectives.psum(jnp.stack([nats, count]), fsdp.AXIS)
        gradients = jax.tree.map(lambda leaf: leaf / count, gradients)
        gradients, norm = fsdp.clip(gradients, _GRADIENT_NORM, self._collectives)
        updates, optimizer = self._optimizer.update(gradients, state.optimizer, state.parameters)
        parameters = optax.apply_updates(state.parameters, updates)
        return State(parameters, optimizer), {"train_loss": nats / count, "gradient_norm": norm}
