"""Trains the transformer of train_transformer.py with `jax.jit` and `NamedSharding` alone.

This program does not mention jax_cxl. XLA's partitioner inserts all collectives. An option of the
launcher, or a variable, sends the collectives between processes through the memory pool:

    python -m jax_cxl.launch -n 2 examples/train_jit.py
    python -m jax_cxl.launch -n 2 --replace-collectives examples/train_jit.py
    JAX_CXL_REPLACE_COLLECTIVES=1 srun -n 2 python examples/train_jit.py

Its second line says what moves the data: XLA or jax_cxl.

The parameters are fully sharded over all devices (FSDP). With `--tensor_parallel=N`, groups of N
neighboring devices share the products of each layer, and the parameters are fully sharded over
the groups too:

    python -m jax_cxl.launch -n 2 --devices-per-process 2 examples/train_jit.py --tensor_parallel=2

The flags are otherwise those of train_transformer.py. `common/trainer.py` has the training step.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import app, flags
from common import training, transformer
from common.trainer import AXIS, State, Trainer, Tree, checkpoint
from jax.sharding import Mesh, NamedSharding, PartitionSpec

_TENSOR_PARALLEL = flags.DEFINE_integer(
    "tensor_parallel", 1, "Devices that share the products of each layer.", lower_bound=1
)

# The mesh axis over whose devices the products of a layer are divided.
MODEL_AXIS = "model"

# The dimension along which the devices of a tensor-parallel group divide each parameter. The first
# products of a layer ("qkv" and "up") are divided by heads or by hidden channels. The second ones
# ("out" and "down") sum over heads or channels, so each needs one sum over the group.
_MODEL_DIMENSION = {"embedding": 0, "qkv": 1, "out": 0, "up": 1, "down": 0}


def device_mesh(tensor_parallel: int) -> Mesh:
    """Returns a mesh of all devices. `AXIS` counts groups, `MODEL_AXIS` the devices of a group.

    Args:
      tensor_parallel: number of devices in a tensor-parallel group.

    Raises:
      ValueError: `tensor_parallel` does not divide the number of devices.
    """
    if jax.device_count() % tensor_parallel:
        raise ValueError(
            f"--tensor_parallel={tensor_parallel} does not divide {jax.device_count()} devices."
        )
    devices = np.asarray(jax.devices()).reshape(-1, tensor_parallel)
    return Mesh(devices, (AXIS, MODEL_AXIS))


class JitTrainer(Trainer):
    """The programs see whole arrays. Shardings declare how the arrays lie on the devices.

    The parameters are {"outer": {name: array}, "layers": [{name: array}, ...]}, float32. A
    tensor-parallel group shares each matrix along one dimension. Across the groups, each device's
    part is divided along the other dimension, as in fully sharded data parallelism.
    """

    def __init__(
        self,
        sizes: transformer.Sizes,
        dtype: jnp.dtype,
        optimizer: optax.GradientTransformation,
        tensor_parallel: int = 1,
    ):
        """Chooses the shardings and defines the programs.

        Args:
          sizes: sizes of the model.
          dtype: dtype of activations, and of parameters and gradients in communication.
          optimizer: an Optax optimizer.
          tensor_parallel: number of devices in a tensor-parallel group.
        """
        super().__init__(sizes, dtype, optimizer, device_mesh(tensor_parallel))
        parameters = jax.eval_shape(self._draw, 0)
        leaves = jax.tree.leaves(parameters)
        self.parameter_count = sum(leaf.size for leaf in leaves)
        stored = self._shardings(parameters, stored=True)
        state = State(
            stored,
            optax.tree_map_params(
                optimizer,
                lambda _, sharding: sharding,
                jax.eval_shape(optimizer.init, parameters),
                stored,
                transform_non_params=lambda _: self._sharding(),
            ),
        )
        whole = self._sharding()
        self.init = jax.jit(self._init, out_shardings=state)
        self.step = jax.jit(self._step, donate_argnums=0, out_shardings=(state, whole))
        self.evaluate = jax.jit(self._evaluate, out_shardings=whole)

    def _sharding(self, *axes: str | None) -> NamedSharding:
        """Returns the sharding of an array whose dimensions lie along these axes."""
        return NamedSharding(self._mesh, PartitionSpec(*axes))

    def _shardings(self, parameters: Tree, stored: bool) -> Tree:
        """Returns the sharding of each parameter.

        Args:
          parameters: pytree of arrays; the name of an array is the last key of its path.
          stored: True for the shardings of the state. False for those of the computation, in which
            each tensor-parallel group has whole parameters.
        """

        def sharding(path: Any, leaf: Any) -> NamedSharding:
            axes: list[str | None] = [None] * leaf.ndim
            shared = _MODEL_DIMENSION.get(path[-1].key)
            if shared is not None:
                axes[shared] = MODEL_AXIS
            free = 1 - shared if shared is not None else 0
            # A dimension that the devices cannot share equally stays whole.
            if stored and leaf.shape[free] % self._mesh.shape[AXIS] == 0:
                axes[free] = AXIS
            return self._sharding(*axes)

        return jax.tree.map_with_path(sharding, parameters)

    def _draw(self, seed: Any) -> Tree:
        """Draws the parameters."""
        keys = jax.random.split(jax.random.key(seed), 1 + self._sizes.layers)
        return {
            "outer": transformer.init_embedding(keys[0], self._sizes),
            "layers": [transformer.init_layer(key, self._sizes) for key in keys[1:]],
        }

    def _init(self, seed: jax.Array) -> State:
        parameters = self._draw(seed)
        return State(parameters, self._optimizer.init(parameters))

    def _gather(self, parameters: Tree) -> Tree:
        """Returns parameters in the dtype and the sharding of the computation.

        The cast comes first, so that bfloat16 also halves the bytes of the communication.
        """
        cast = jax.tree.map(lambda leaf: leaf.astype(self._dtype), parameters)
        return jax.lax.with_sharding_constraint(cast, self._shardings(cast, stored=False))

    def _outer(self, parameters: Tree) -> transformer.Parameters:
        return self._gather(parameters)

    def _apply_layers(self, parameters: Tree, x: jax.Array) -> jax.Array:
        @checkpoint
        def apply_layer(layer: Tree, x: jax.Array) -> jax.Array:
            x = transformer.apply_layer(self._gather(layer), x, self._sizes.heads)
            return jax.lax.with_sharding_constraint(x, self._sharding(AXIS))

        for layer in parameters:
            x = apply_layer(layer, x)
        return x

    def _sum(self, x: jax.Array) -> jax.Array:
        return x  # Arrays are whole here.


def main(argv: list[str]) -> None:
    training.prepare(argv)
    training.connect()
    sizes, dtype, optimizer = training.model()
    trainer = JitTrainer(sizes, dtype, optimizer, _TENSOR_PARALLEL.value)
    run = training.train(training.Program("inserted by XLA"), trainer, training.load_corpus())
    training.write(run)


if __name__ == "__main__":
    app.run(main)
