"""Trains a transformer whose perceptrons are mixtures of experts, spread over the devices."""

import functools
from collections.abc import Callable
from typing import Any

import exchanges
import fsdp
import jax
import jax.numpy as jnp
import optax
import transformer
from jax.sharding import PartitionSpec
from trainer import AXIS, State, Trainer, Tree

# How much the loss that balances the experts weighs.
_BALANCE = 0.01


class MoeTrainer(Trainer):
    """Each device holds some experts of each layer; everything else is fully sharded (fsdp.py).

    The parameters are {"outer": shard, "layers": [{"attention": shard, "experts": vector}, ...]},
    float32. "attention" has the router and the norms too. "experts" are the matrices of this
    device's experts, one expert after another.
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
    ):
        """Lays out the state and defines the programs.

        Args:
            sizes: sizes of the model.
            dtype: dtype of activations, and of parameters and gradients in communication.
            optimizer: an Optax optimizer.
            collectives: `jax_cxl`, or another namespace with collectives.
            exchange: of exchanges.py.
            experts: experts of each layer, a multiple of the number of devices.
            choices: experts of each token.
            capacity_factor: rows of an expert, over its mean share of the tokens.
        """
        super().__init__(sizes, dtype, optimizer, fsdp.device_mesh())
        if experts % self._mesh.size:
            raise ValueError(f"--experts={experts} is no multiple of {self._mesh.size} devices.")
        self._collectives = collectives
        self._exchange = exchange
        self._experts, self._choices = experts, choices
        self._capacity_factor = capacity_factor

        def unit(init: Callable[[jax.Array], Tree]) -> fsdp.Unit:
            return fsdp.Unit(jax.eval_shape(lambda: init(jax.random.key(0))), self._mesh.size)

        self._outer_unit = unit(lambda key: transformer.init_embedding(key, sizes))
        self._attention_unit = unit(self._draw_attention)
        per_layer = self._attention_unit.size + experts * 8 * sizes.width**2
        self.parameter_count = self._outer_unit.size + sizes.layers * per_layer

        def vector(size: int) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct((size,), jnp.float32)

        layer = {
            "attention": vector(self._attention_unit.padded),
            "experts": vector(experts * 8 * sizes.width**2),
        }
        vectors = {"outer": vector(self._outer_unit.padded), "layers": [layer] * sizes.layers}
        state = fsdp.partition(State(vectors, jax.eval_shape(optimizer.init, vectors)))
        rows, everywhere = PartitionSpec(AXIS), PartitionSpec()
        on_devices = functools.partial(jax.shard_map, mesh=self._mesh, check_vma=False)
        self.init = jax.jit(on_devices(self._init, in_specs=everywhere, out_specs=state))
        self.step = jax.jit(
            on_devices(self._step, in_specs=(state, rows), out_specs=(state, everywhere)),
            donate_argnums=0,
        )
        self.evaluate = jax.jit(
            on_devices(self._evaluate, in_specs=(state.parameters, rows), out_specs=everywhere)
        )

    def _draw_attention(self, key: jax.Array) -> transformer.Parameters:
        """Draws what a layer has beside its experts."""
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

        outer = self._outer_unit.shard(transformer.init_embedding(keys[0], self._sizes))
        parameters = {"outer": outer, "layers": [layer(key) for key in keys[1:]]}
        return State(parameters, self._optimizer.init(parameters))

    def _outer(self, parameters: Tree) -> transformer.Parameters:
        return self._outer_unit.gather(parameters, self._collectives, self._dtype)

    def _apply_layers(self, parameters: Tree, x: jax.Array) -> jax.Array:
        for layer in parameters:
            attention = self._attention_unit.gather(
                layer["attention"], self._collectives, self._dtype
            )
            x = transformer.apply_attention(attention, x, self._sizes.heads)
            x = x + self._apply_experts(attention, layer["experts"].astype(self._dtype), x)
        return x

    def _apply_experts(
        self, attention: transformer.Parameters, experts: jax.Array, x: jax.Array
    ) -> jax.Array:
        """Applies the mixture to (rows, T, D)."""
        width = self._sizes.width
        matrices = experts.reshape(-1, 2, 4 * width**2)
        up = matrices[:, 0].reshape(-1, width, 4 * width)
        down = matrices[:, 1].reshape(-1, 4 * width, width)
        tokens = transformer.normalize(x, attention["mlp_norm"]).reshape(-1, width)
        logits = (tokens @ attention["router"]).astype(jnp.float32)
        probabilities = jax.nn.softmax(logits)
        weights, chosen = jax.lax.top_k(probabilities, self._choices)
        weights /= weights.sum(1, keepdims=True)

        def apply(rows: jax.Array) -> jax.Array:
            return jax.nn.gelu(rows @ up) @ down

        capacity = exchanges.capacity(
            len(tokens), self._choices, self._experts, self._mesh.size, self._capacity_factor
        )
        sizes = exchanges.Sizes(AXIS, self._experts, capacity)
        y = self._exchange(tokens, chosen, weights, apply, sizes)
        share = jax.nn.one_hot(chosen, self._experts).mean((0, 1))
        # Gradients are sums over tokens, so this loss counts once for each.
        balance = self._experts * jnp.sum(share * probabilities.mean(0)) * len(tokens)
        return _with_loss(y, _BALANCE * balance).reshape(x.shape)

    def _sum(self, x: jax.Array) -> jax.Array:
        return self._collectives.psum(x, AXIS)


@jax.custom_vjp
def _with_loss(y: jax.Array, loss: jax.Array) -> jax.Array:
    """Returns y. A program that differentiates a function of y adds `loss` to this function."""
    return y


def _with_loss_backward(_: Any, ct: jax.Array) -> tuple[jax.Array, jax.Array]:
    return ct, jnp.ones((), jnp.float32)


_with_loss.defvjp(lambda y, loss: (y, None), _with_loss_backward)
