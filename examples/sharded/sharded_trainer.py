"""What the trainers share whose collectives are written out: parameters in shards, `shard_map`."""

import abc
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from common import transformer
from common.trainer import AXIS, State, Trainer, Tree
from jax.sharding import PartitionSpec

from sharded import fsdp


class ShardedTrainer(Trainer):
    """The programs are calls of `shard_map`; their functions see the parts of one device.

    A subclass draws the first state in `_init`.
    """

    def __init__(
        self,
        sizes: transformer.Sizes,
        dtype: jnp.dtype,
        optimizer: optax.GradientTransformation,
        collectives: fsdp.Collectives,
    ):
        """Lays out what is outside the layers.

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
        """Returns the type of shards of all devices, of which copies have the same."""
        return jax.ShapeDtypeStruct((*shape[:-1], shape[-1] * self._copies), jnp.float32)

    def _define(self, layers: Tree, check_vma: bool) -> tuple[Callable[..., Any], State]:
        """Defines the programs.

        Args:
          layers: types of the parameters of the layers.
          check_vma: as in `jax.shard_map`.

        Returns:
          `jax.shard_map` for further programs, and the partition of the state.
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
