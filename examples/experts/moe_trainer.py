"""Trains a transformer whose perceptrons are mixtures of experts, spread over the devices."""

import functools
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from common import transformer
from common.trainer import AXIS, State, Tree
from jax.sharding import PartitionSpec
from sharded import fsdp
from sharded.fsdp_trainer import ShardedTrainer

from experts import exchanges, microbatches

# How much the loss that balances the experts weighs.
_BALANCE = 0.01


class MoeTrainer(ShardedTrainer):
    """Each device holds some experts of each layer; the rest is fully sharded (sharded/fsdp.py).

    The parameters are {"outer": shard, "layers": [{"attention": shard, "experts": vector}, ...]},
    float32. "attention" has the router and the norms too. "experts" are the matrices of this
    device's experts, one expert after another.

    An expert's number is the column of the router that chooses it. The number also determines
    which device holds the expert. So the experts of a layer can change places at any time, if their
    matrices, their columns of the router and the optimizer's moments of both move together: the
    model computes the same.

    Attributes:
      count: (parameters, tokens) -> (devices, layers, experts), int32: how often the tokens of
        each device choose each expert of each layer.
      move: (State (donated), order) -> State. `order` is (layers, experts), int32, on all
        devices: the number that each expert had before. Needs `take_rows` of `jax_cxl`.
    """

    def __init__(
        self,
        sizes: transformer.Sizes,
        dtype: jnp.dtype,
        optimizer: optax.GradientTransformation,
        collectives: fsdp.Collectives,
        exchange: Callable[..., jax.Array],
        experts: int,
        choices: int,
        capacity_factor: float,
        in_halves: bool = False,
    ):
        """Lays out the state and defines the programs.

        Args:
          sizes: sizes of the model.
          dtype: dtype of activations, and of the parameters and gradients that are communicated.
          optimizer: an Optax optimizer.
          collectives: `jax_cxl`, or another namespace with collectives.
          exchange: an exchange of exchanges.py, which moves rows to experts and back.
          experts: experts of each layer, a multiple of the number of devices.
          choices: experts of each token.
          capacity_factor: rows that an expert has room for, divided by its mean share of tokens.
          in_halves: whether a step computes two micro-batches, one while the other communicates
            (microbatches.py). Then `collectives` has to be `jax_cxl`, and a step does not use
            `exchange`.
        """
        super().__init__(sizes, dtype, optimizer, collectives)
        if experts % self._mesh.size:
            raise ValueError(f"--experts={experts} is not a multiple of {self._mesh.size} devices.")
        self._exchange = exchange
        self._experts, self._choices = experts, choices
        self._capacity_factor = capacity_factor
        self._in_halves = in_halves

        self._attention_unit = self._unit(self._draw_attention)
        per_layer = self._attention_unit.size + experts * 8 * sizes.width**2
        self.parameter_count = self._outer_unit.size + sizes.layers * per_layer
        layer = {
            "attention": self._vector(self._attention_unit.padded),
            "experts": self._vector(experts * 8 * sizes.width**2),
        }
        on_devices, state = self._define([layer] * sizes.layers, check_vma=False)
        rows, everywhere = PartitionSpec(AXIS), PartitionSpec()
        self.count = jax.jit(
            on_devices(self._count, in_specs=(state.parameters, rows), out_specs=everywhere)
        )
        self.move = jax.jit(
            on_devices(self._move, in_specs=(state, everywhere), out_specs=state), donate_argnums=0
        )

    def _draw_attention(self, key: jax.Array) -> transformer.Parameters:
        """Draws the parameters that a layer has besides its experts."""
        layer = transformer.init_layer(key, self._sizes)
        shape = (self._sizes.width, self._experts)
        router = shape[0] ** -0.5 * jax.random.normal(jax.random.fold_in(key, 0), shape)
        return {"router": router} | {n: x for n, x in layer.items() if n not in ("up", "down")}

    def _draw_expert(self, key: jax.Array) -> jax.Array:
        layer = transformer.init_layer(key, self._sizes)
        return jnp.concatenate([layer["up"].ravel(), layer["down"].ravel()])

    def _init(self, seed: jax.Array) -> State:
        keys = jax.random.split(jax.random.key(seed), 1 + self._sizes.layers)
        mine = self._experts // self._mesh.size
        numbers = 1 + jax.lax.axis_index(AXIS) * mine + jnp.arange(mine)

        def layer(key: jax.Array) -> Tree:
            expert_keys = jax.vmap(functools.partial(jax.random.fold_in, key))(numbers)
            return {
                "attention": self._attention_unit.shard(self._draw_attention(key)),
                "experts": jax.lax.map(self._draw_expert, expert_keys).ravel(),
            }

        # Compiling a loop over all layers takes only as long as compiling one layer.
        drawn = jax.lax.map(layer, keys[1:])
        layers = [jax.tree.map(operator.itemgetter(i), drawn) for i in range(self._sizes.layers)]
        outer = self._outer_unit.shard(transformer.init_embedding(keys[0], self._sizes))
        parameters = {"outer": outer, "layers": layers}
        return State(parameters, self._optimizer.init(parameters))

    def _apply_layers(self, parameters: Tree, x: jax.Array) -> jax.Array:
        if not self._in_halves:
            return self._layers(parameters, x)[0]

        def before(vector: jax.Array, x: jax.Array) -> Any:
            attention = self._attention_unit.unpack(vector)
            x = transformer.apply_attention(attention, x, self._sizes.heads)
            tokens, weights, chosen, balance = self._route(attention, x)
            return (_with_loss(x, balance), tokens, weights), chosen

        shards, matrices = (
            [layer[name].astype(self._dtype) for layer in parameters]
            for name in ("attention", "experts")
        )
        sizes = self._exchange_sizes(x.shape[0] // 2 * x.shape[1])
        return microbatches.apply(before, self._compute, sizes, shards, matrices, x)

    def _layers(self, parameters: Tree, x: jax.Array) -> tuple[jax.Array, list[jax.Array]]:
        """Applies all layers; also returns the choices of this device's tokens in each layer."""
        choices = []
        for layer in parameters:
            attention = self._attention_unit.gather(
                layer["attention"], self._collectives, self._dtype
            )
            x = transformer.apply_attention(attention, x, self._sizes.heads)
            y, chosen = self._apply_experts(attention, layer["experts"].astype(self._dtype), x)
            x = x + y
            choices.append(chosen)
        return x, choices

    def _apply_experts(
        self, attention: transformer.Parameters, experts: jax.Array, x: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Applies the mixture to (rows, T, D); also returns the choices, (rows * T, k)."""
        tokens, weights, chosen, balance = self._route(attention, x)
        compute = functools.partial(self._compute, experts)
        sizes = self._exchange_sizes(len(tokens))
        y = self._exchange(tokens, chosen, weights, compute, sizes)
        return _with_loss(y, balance).reshape(x.shape), chosen

    def _exchange_sizes(self, tokens: int) -> exchanges.Sizes:
        capacity = exchanges.capacity(
            tokens, self._choices, self._experts, self._mesh.size, self._capacity_factor
        )
        return exchanges.Sizes(AXIS, self._experts, capacity)

    def _compute(self, vector: jax.Array, rows: jax.Array) -> jax.Array:
        """Applies this device's experts to (experts of a device, rows, D)."""
        width = self._sizes.width
        matrices = vector.reshape(-1, 2, 4 * width**2)
        up = matrices[:, 0].reshape(-1, width, 4 * width)
        down = matrices[:, 1].reshape(-1, 4 * width, width)
        return jax.nn.gelu(rows @ up) @ down

    def _route(self, attention: transformer.Parameters, x: jax.Array) -> tuple[jax.Array, ...]:
        """Chooses the experts of (rows, T, D).

        Returns:
          The tokens for the experts, (rows * T, D); weights and choices, (rows * T, k); and the
          loss that balances the experts, for each sequence by itself, so that it does not depend
          on how sequences are spread.
        """
        rows, length, width = x.shape
        tokens = transformer.normalize(x, attention["mlp_norm"]).reshape(-1, width)
        logits = (tokens @ attention["router"]).astype(jnp.float32)
        probabilities = jax.nn.softmax(logits)
        weights, chosen = jax.lax.top_k(probabilities, self._choices)
        weights /= weights.sum(1, keepdims=True)
        share = jax.nn.one_hot(chosen, self._experts).reshape(rows, -1, self._experts).mean(1)
        mean = probabilities.reshape(rows, length, self._experts).mean(1)
        # Gradients are sums over tokens, and so is this loss: it counts once for each token.
        balance = _BALANCE * self._experts * jnp.sum(share * mean) * length
        return tokens, weights, chosen, balance

    def _count(self, parameters: Tree, tokens: jax.Array) -> jax.Array:
        x = transformer.embed(self._outer(parameters["outer"]), tokens[:, :-1])
        _, choices = self._layers(parameters["layers"], x)
        counts = jnp.stack(
            [jnp.bincount(chosen.ravel(), length=self._experts) for chosen in choices]
        )
        return self._collectives.all_gather(counts[None].astype(np.int32), AXIS, tiled=True)

    def _move(self, state: State, order: jax.Array) -> State:
        def moved(path: Any, leaf: jax.Array) -> jax.Array:
            """Moves the parameters of a layer, or the optimizer's moments, which have the same
            layout.
            """
            kind = getattr(path[-1], "key", None)
            if kind == "experts":
                return self._move_experts(leaf, order[path[-2].idx])
            if kind == "attention":
                unit = self._attention_unit.gather(leaf, self._collectives, leaf.dtype)
                router = unit["router"][:, order[path[-2].idx]]
                return self._attention_unit.shard(unit | {"router": router})
            return leaf

        return jax.tree_util.tree_map_with_path(moved, state)

    def _move_experts(self, vector: jax.Array, order: jax.Array) -> jax.Array:
        """Fetches the experts that `order` gives to this device from the devices that hold them."""
        import jax_cxl

        mine = self._experts // self._mesh.size
        first = jax.lax.axis_index(AXIS) * mine
        numbers = jnp.arange(mine) + first
        # The new numbers of the experts that this device holds now. Only experts that leave this
        # device are written to the pool.
        to = jnp.argsort(order)[numbers]
        leaves = (to < first) | (to >= first + mine)
        table = vector.reshape(mine, -1)
        taken = jax_cxl.take_rows(table, order[numbers], AXIS, published=leaves)
        return taken.ravel()


@jax.custom_vjp
def _with_loss(y: jax.Array, loss: jax.Array) -> jax.Array:
    """Returns y, but makes the gradient of any function of y include the gradient of `loss`.

    In the backward pass `loss` gets the cotangent 1, as if it were added to the function that is
    differentiated.
    """
    return y


def _with_loss_backward(_: Any, ct: jax.Array) -> tuple[jax.Array, jax.Array]:
    return ct, jnp.ones((), jnp.float32)


_with_loss.defvjp(lambda y, loss: (y, None), _with_loss_backward)
