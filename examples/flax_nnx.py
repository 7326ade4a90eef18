"""Trains a Flax NNX model whose parameters are divided over the devices (FSDP).

    python -m jax_cxl.launch -n 2 --replace-collectives examples/flax_nnx.py
    JAX_CXL_REPLACE_COLLECTIVES=1 srun python examples/flax_nnx.py

This program does not mention jax_cxl. XLA's partitioner inserts the collectives, and the option or
the variable sends them through the pool.
"""

import jax
import numpy as np
import optax
from absl import app, flags, logging
from flax import nnx

_STEPS = flags.DEFINE_integer("steps", 200, "Steps of training.")

_BATCH, _FEATURES, _CLASSES = 64, 16, 4


class Classifier(nnx.Module):
    """A perceptron with two hidden layers: (B, _FEATURES) to (B, _CLASSES)."""

    def __init__(self, rngs: nnx.Rngs):
        self.first = nnx.Linear(_FEATURES, 128, rngs=rngs)
        self.second = nnx.Linear(128, 128, rngs=rngs)
        self.last = nnx.Linear(128, _CLASSES, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.last(nnx.relu(self.second(nnx.relu(self.first(x)))))


def create(mesh: jax.sharding.Mesh) -> tuple[Classifier, nnx.Optimizer]:
    """Returns the model and its optimizer. Arrays that can be divided are divided over the devices.

    No device ever holds such an array as a whole.
    """

    def divided(array: jax.Array) -> jax.NamedSharding:
        divisible = array.ndim > 0 and array.shape[0] % mesh.size == 0
        return jax.NamedSharding(mesh, jax.P("data") if divisible else jax.P())

    @nnx.jit
    def initialize() -> tuple[Classifier, nnx.Optimizer]:
        model = Classifier(nnx.Rngs(0))
        optimizer = nnx.Optimizer(model, optax.adamw(3e-3), wrt=nnx.Param)
        state = nnx.state((model, optimizer))
        shardings = jax.tree.map(divided, state)
        nnx.update((model, optimizer), jax.lax.with_sharding_constraint(state, shardings))
        return model, optimizer

    return initialize()


@nnx.jit
def train_step(
    model: Classifier, optimizer: nnx.Optimizer, x: jax.Array, labels: jax.Array
) -> jax.Array:
    """Takes a step, in place. Returns the loss before the step, () float32."""

    def loss(model: Classifier) -> jax.Array:
        return optax.softmax_cross_entropy_with_integer_labels(model(x), labels).mean()

    value, gradients = nnx.value_and_grad(loss)(model)
    optimizer.update(model, gradients)
    return value


def batch(step: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns all points of a batch and their classes, the same on all processes.

    The caller lets each process use its part of them.
    """
    x = np.random.default_rng(step).standard_normal((_BATCH, _FEATURES), np.float32)
    return x, 2 * (x[:, 0] * x[:, 1] > 0) + (x[:, 2] > 0).astype(np.int32)


def main(_: list[str]) -> None:
    logging.set_verbosity(logging.WARNING)
    jax.distributed.initialize()  # Detects jax_cxl.launch, Slurm and Kubernetes.
    mesh = jax.sharding.Mesh(jax.devices(), ("data",))
    by_row = jax.NamedSharding(mesh, jax.P("data"))
    model, optimizer = create(mesh)
    for step in range(_STEPS.value):
        x, labels = (
            jax.make_array_from_callback(whole.shape, by_row, whole.__getitem__)
            for whole in batch(step)
        )
        value = train_step(model, optimizer, x, labels)
        if step % 50 == 0 or step == _STEPS.value - 1:
            loss = float(value)
            if jax.process_index() == 0:
                print(f"step {step}: loss {loss:.4f}", flush=True)


if __name__ == "__main__":
    app.run(main)
