"""What all trainers of the transformer share, however they distribute it: programs and loss."""

import abc
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from common import transformer

# The mesh axis over whose devices the rows of a batch are divided.
AXIS = "data"

Tree = Any

_GRADIENT_NORM = 1.0

# Save only products of activations and weights for the backward pass. Everything else is cheap to
# repeat. The backward pass gathers each layer again, so that only one or two layers exist whole at
# a time.
checkpoint = functools.partial(
    jax.checkpoint, policy=jax.checkpoint_policies.dots_with_no_batch_dims_saveable
)


class State(NamedTuple):
    """The training state.

    Attributes:
      parameters: {"outer": ..., "layers": ...}, float32; each subclass of `Trainer` describes them.
      optimizer: Optax's state, with arrays of the same shapes, and step counters.
    """

    parameters: Tree
    optimizer: Tree


class Trainer(abc.ABC):
    """The base of trainers: three programs, each of which runs on all devices.

    Attributes:
      init: seed, () int32 -> State.
      step: State (donated), tokens -> (State, {"train_loss", "gradient_norm"}), both () float32;
        the loss is the loss before the step.
      evaluate: parameters, tokens -> mean loss in nats per byte, () float32.
      parameter_count: parameters of the model.
    """

    init: Callable[[int], State]
    step: Any
    evaluate: Any
    parameter_count: int

    def __init__(
        self,
        sizes: transformer.Sizes,
        dtype: jnp.dtype,
        optimizer: optax.GradientTransformation,
        mesh: Mesh,
    ):
        """Keeps what all trainers need. A subclass defines the programs.

        Args:
          sizes: sizes of the model.
          dtype: dtype of activations, and of parameters and gradients in communication.
          optimizer: an Optax optimizer.
          mesh: all devices; one of its axes is `AXIS`.
        """
        self._sizes = sizes
        self._dtype = dtype
        self._optimizer = optimizer
        self._mesh = mesh
        # How many devices have a copy of each parameter. The norm of the gradient counts each
        # parameter once, and not once for each copy.
        self._copies = 1

    def compile(self, state: State, tokens: jax.Array, held_out: jax.Array) -> None:
        """Compiles `step` and `evaluate` for arguments of these shapes.

        The compiled programs replace the attributes `step` and `evaluate`.
        """
        self.step = self.step.lower(state, tokens).compile()
        self.evaluate = self.evaluate.lower(state.parameters, held_out).compile()

    def put(self, tokens: np.ndarray) -> jax.Array:
        """Spreads a batch over the devices.

        Args:
          tokens: (rows, T + 1), uint8, the same on all processes.

        Returns:
          (rows rounded up to a multiple of the size of `AXIS`, T + 1), int32. The added rows
          contain -1, which does not count, so that any number of devices computes the same loss.
        """
        padding = -len(tokens) % self._mesh.shape[AXIS]
        padded = np.pad(tokens.astype(np.int32), ((0, padding), (0, 0)), constant_values=-1)
        sharding = NamedSharding(self._mesh, PartitionSpec(AXIS))
        return jax.make_array_from_callback(padded.shape, sharding, lambda index: padded[index])

    @abc.abstractmethod
    def _outer(self, parameters: Tree) -> transformer.Parameters:
        """Returns the parameters outside the layers, for the computation."""

    @abc.abstractmethod
    def _apply_layers(self, parameters: Tree, x: jax.Array) -> jax.Array:
        """Applies all layers to (rows, T, D)."""

    @abc.abstractmethod
    def _sum(self, x: jax.Array) -> jax.Array:
        """Returns the sum of `x` over the devices, if each has computed its own `x` from its rows.

        If arrays are whole (`jax.jit`), `x` is the sum already.
        """

    def _sum_copies(self, gradients: Tree) -> Tree:
        """Adds up the gradients of devices that have the same parameters and different rows.

        By default there are no such devices.
        """
        return gradients

    def _nats(self, parameters: Tree, tokens: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Sums the loss over rows.

        Args:
          parameters: parameters of the state.
          tokens: (rows, T + 1), int32; -1 does not count.

        Returns:
          The sum in nats and the number of summed bytes, both () float32.
        """
        outer = self._outer(parameters["outer"])
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        x = self._apply_layers(parameters["layers"], transformer.embed(outer, inputs))
        counts = targets >= 0
        nats = jnp.where(counts, transformer.nats(outer, x, targets), 0)
        return jnp.sum(nats), jnp.sum(counts, dtype=jnp.float32)

    def _evaluate(self, parameters: Tree, tokens: jax.Array) -> jax.Array:
        """Returns the mean loss over all rows."""
        nats, count = self._nats(parameters, tokens)
        nats, count = self._sum(jnp.stack([nats, count]))
        return nats / count

    def _step(self, state: State, tokens: jax.Array) -> tuple[State, dict[str, jax.Array]]:
        """Takes one step of the optimizer."""
        differentiate = jax.value_and_grad(self._nats, has_aux=True)
        (nats, count), gradients = differentiate(state.parameters, tokens)
        # The gradients are already sums over all rows, even if each device computed the loss of its
        # own rows: the transpose of the gather of the parameters adds up the devices' gradients.
        nats, count = self._sum(jnp.stack([nats, count]))
        gradients = self._sum_copies(gradients)
        gradients = jax.tree.map(lambda leaf: leaf / count, gradients)
        gradients, norm = self._clip(gradients)
        updates, optimizer = self._optimizer.update(gradients, state.optimizer, state.parameters)
        parameters = optax.apply_updates(state.parameters, updates)
        return State(parameters, optimizer), {"train_loss": nats / count, "gradient_norm": norm}

    def _clip(self, gradients: Tree) -> tuple[Tree, jax.Array]:
        """Scales the gradient down to a global norm of at most 1; also returns the norm before
        scaling.

        `optax.clip_by_global_norm` cannot be used, because in some trainers a device sees only its
        own shards. Optax would then use the norm of these shards.
        """
        squares = jnp.stack([jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(gradients)])
        norm = jnp.sqrt(self._sum(jnp.sum(squares)) / self._copies)
        scale = jnp.minimum(1.0, _GRADIENT_NORM / (norm + 1e-6))
        return jax.tree.map(lambda leaf: leaf * scale, gradients), norm
