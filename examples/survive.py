"""Trains to the same loss however often its ranks are killed, and reads nothing from a disk.

    python -m jax_cxl.launch -n 2 --restarts 20 --grace 0.5 examples/survive.py --kills 20

When a rank is killed, the others get `jax_cxl.PeerLostError` within milliseconds and end. The
launcher starts all ranks again, and they continue from the last snapshot: the state of the last
step or of the previous one. They read the checkpoint on the disk only if there is no
snapshot, for example because the memory of the snapshots is lost too. The position in the data is
part of the state, so that a kill does not change a bit of the result.
"""

import os
import random
import signal
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags, logging

import jax_cxl

_STEPS = flags.DEFINE_integer("steps", 400, "Steps of training.")
_SNAPSHOTS = flags.DEFINE_string(
    "snapshots",
    "shm:survive?size=32MiB",
    "Memory for snapshots. On CXL memory, such as dax:/dev/dax0.0, they outlive the hosts too.",
)
_EVERY = flags.DEFINE_integer("every", 100, "Steps between two checkpoints on the disk.")
_KILLS = flags.DEFINE_integer("kills", 0, "How many times a random rank is killed.")
_FILE = flags.DEFINE_string(
    "checkpoint",
    os.path.join(tempfile.gettempdir(), "survive.npz"),
    "File of the checkpoint.",
)

AXIS = "ranks"
FEATURES, ROWS = 64, 128


def batch(position, rank):
    """Returns the rows and targets on which `rank` trains in a step.

    `position` is the position of the step in the data.
    """
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(0), position), rank)
    x = jax.random.normal(key, (ROWS, FEATURES))
    return x, jnp.sin(x @ jnp.linspace(-1, 1, FEATURES))


def loss(weights, x, y):
    hidden = jnp.tanh(x @ weights["in"])
    return jnp.mean((hidden @ weights["out"] - y) ** 2)


def train_step(weights, position):
    x, y = batch(position, jax.lax.axis_index(AXIS))
    value, gradient = jax.value_and_grad(loss)(weights, x, y)
    gradient, value = jax_cxl.pmean((gradient, value), AXIS)
    return jax.tree.map(lambda w, g: w - 0.05 * g, weights, gradient), value


def save_to_disk(step, state):
    """Replaces the checkpoint file atomically: a kill leaves the old or the new checkpoint."""
    folder = os.path.dirname(os.path.abspath(_FILE.value))
    with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
        np.savez(file, step=step, position=state["position"], **state["weights"])
    os.replace(file.name, _FILE.value)


def restore_from_disk():
    if os.path.exists(_FILE.value):
        saved = dict(np.load(_FILE.value))
        step, position = int(saved.pop("step")), int(saved.pop("position"))
        return step, {"weights": saved, "position": position}
    key = jax.random.split(jax.random.key(1))
    weights = {
        "in": jax.random.normal(key[0], (FEATURES, FEATURES)) / 8,
        "out": jax.random.normal(key[1], (FEATURES,)) / 8,
    }
    return 0, {"weights": weights, "position": 0}


def train(kills):
    """Trains from the last snapshot to the end, after `kills` kills."""
    mesh = jax_cxl.make_mesh(
        (jax.device_count(),), (AXIS,), axis_types=(jax.sharding.AxisType.Auto,)
    )
    step_on_all = jax.jit(
        jax.shard_map(train_step, mesh=mesh, in_specs=jax.P(), out_specs=jax.P(), check_vma=False)
    )
    snapshots = jax_cxl.Snapshots(_SNAPSHOTS.value)
    step, state = snapshots.restore_latest(like(mesh)) or restore_from_disk()
    print(f"continues from step {step}", flush=True)
    value = jnp.nan
    # The next kill hits a random rank at one of the next steps. All ranks draw the same numbers.
    accident = random.Random(kills)
    victim = accident.randrange(jax.process_count())
    moment = step + accident.randrange(1, 20)
    while step < _STEPS.value:
        if kills < _KILLS.value and step == moment and jax.process_index() == victim:
            os.kill(os.getpid(), signal.SIGKILL)
        weights, value = step_on_all(state["weights"], np.int32(state["position"]))
        state = {"weights": weights, "position": state["position"] + 1}
        step += 1
        snapshots.save(step, state)
        if step % _EVERY.value == 0 and jax.process_index() == 0:
            save_to_disk(step, state)
    if jax.process_index() == 0:
        print(f"loss {float(value).hex()} after {step} steps and {kills} kills", flush=True)


def like(mesh):
    """Describes the state, for `restore_latest`."""
    everywhere = jax.NamedSharding(mesh, jax.P())

    def array(*shape):
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=everywhere)

    return {"weights": {"in": array(FEATURES, FEATURES), "out": array(FEATURES)}, "position": 0}


def main(_):
    logging.set_verbosity(logging.WARNING)  # absl's default shows JAX looking for TPUs.
    jax_cxl.initialize()
    train(kills=int(os.environ.get("JAX_CXL_LAUNCH_RESTARTS", "0")))


if __name__ == "__main__":
    app.run(main)
