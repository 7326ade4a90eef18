"""Trains to the same loss however often its ranks are killed.

    python -m jax_cxl.launch -n 2 --restart-lost 20 examples/survive.py --kills 20

The launcher restarts a rank that is killed. The others get `jax_cxl.PeerLostError` within
milliseconds and wait for the new rank. Then all ranks continue from the last checkpoint. A step
depends only on the checkpoint and on the number of the step, so that a kill does not change a bit
of the result.
"""

import os
import random
import signal
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags

import jax_cxl

_STEPS = flags.DEFINE_integer("steps", 400, "Steps of training.")
_EVERY = flags.DEFINE_integer("every", 10, "Steps between two checkpoints.")
_KILLS = flags.DEFINE_integer("kills", 0, "How many times a random rank is killed.")
_FILE = flags.DEFINE_string(
    "checkpoint",
    os.path.join(tempfile.gettempdir(), "survive.npz"),
    "File of the checkpoint.",
)

AXIS = "ranks"
FEATURES, ROWS = 64, 128


def batch(step, rank):
    """Returns the rank's rows of a step. They depend on step and rank only."""
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(0), step), rank)
    x = jax.random.normal(key, (ROWS, FEATURES))
    return x, jnp.sin(x @ jnp.linspace(-1, 1, FEATURES))


def loss(weights, x, y):
    hidden = jnp.tanh(x @ weights["in"])
    return jnp.mean((hidden @ weights["out"] - y) ** 2)


def train_step(weights, step):
    x, y = batch(step, jax.lax.axis_index(AXIS))
    value, gradient = jax.value_and_grad(loss)(weights, x, y)
    gradient, value = jax_cxl.pmean((gradient, value), AXIS)
    return jax.tree.map(lambda w, g: w - 0.05 * g, weights, gradient), value


def save(step, weights):
    """Replaces the checkpoint file atomically: a kill leaves the old or the new checkpoint."""
    folder = os.path.dirname(os.path.abspath(_FILE.value))
    with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
        np.savez(file, step=step, **weights)
    os.replace(file.name, _FILE.value)


def restore():
    if os.path.exists(_FILE.value):
        saved = dict(np.load(_FILE.value))
        return int(saved.pop("step")), saved
    key = jax.random.split(jax.random.key(1))
    return 0, {
        "in": jax.random.normal(key[0], (FEATURES, FEATURES)) / 8,
        "out": jax.random.normal(key[1], (FEATURES,)) / 8,
    }


def train(kills):
    """Trains from the last checkpoint to the end, after `kills` kills."""
    mesh = jax_cxl.make_mesh(
        (jax.device_count(),), (AXIS,), axis_types=(jax.sharding.AxisType.Auto,)
    )
    step_on_all = jax.jit(
        jax.shard_map(train_step, mesh=mesh, in_specs=jax.P(), out_specs=jax.P(), check_vma=False)
    )
    step, weights = restore()
    value = jnp.nan
    # The next kill: a random rank, at a random step before the next but one checkpoint.
    accident = random.Random(kills)
    victim = accident.randrange(jax.process_count())
    moment = step + accident.randrange(2 * _EVERY.value)
    while step < _STEPS.value:
        if kills < _KILLS.value and step == moment and jax.process_index() == victim:
            os.kill(os.getpid(), signal.SIGKILL)
        weights, value = jax.block_until_ready(step_on_all(weights, np.int32(step)))
        step += 1
        if step % _EVERY.value == 0 and jax.process_index() == 0:
            save(step, weights)
    if jax.process_index() == 0:
        print(f"loss {float(value).hex()} after {step} steps and {kills} kills", flush=True)


def main(_):
    jax_cxl.initialize()
    # A restarted rank starts with this count. The others count below.
    kills = int(os.environ.get("JAX_CXL_LAUNCH_RESTARTS", "0"))
    while True:
        try:
            return train(kills)
        except jax_cxl.PeerLostError as error:
            print(f"rank {error.rank} is lost", flush=True)
            jax_cxl.regroup(rejoin=True)
            kills += 1


if __name__ == "__main__":
    app.run(main)
