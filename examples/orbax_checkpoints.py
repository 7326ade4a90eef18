"""Keeps training state twice: by Orbax on a disk, and by snapshots in the pool at each step.

    python -m jax_cxl.launch -n 2 examples/orbax_checkpoints.py --folder=/tmp/run
    python -m jax_cxl.launch -n 2 examples/orbax_checkpoints.py --folder=/tmp/run --steps=200
    python -m jax_cxl store delete shm:orbax_checkpoints

A job that starts continues from the newer of the two. Snapshots outlive hosts, and lose at most one
step. The disk outlives the memory of the pool too. The second job may have another number of ranks
(here one that divides 48).
"""

import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from absl import app, flags, logging

import jax_cxl

_FOLDER = flags.DEFINE_string("folder", None, "Folder of the checkpoints.", required=True)
_SNAPSHOTS = flags.DEFINE_string(
    "snapshots", "shm:orbax_checkpoints?size=32MiB", "Memory for snapshots (docs/store.md)."
)
_STEPS = flags.DEFINE_integer("steps", 100, "The last step.")
_EVERY = flags.DEFINE_integer("every", 40, "Steps between two checkpoints on the disk.")

_FEATURES, _ROWS = 96, 48
_OPTIMIZER = optax.adam(3e-3)

# {"weights": (_FEATURES, _FEATURES), "optimizer": ..., "position": () int32}, the first two divided
# over the devices.
State = dict[str, Any]


def initial_state() -> State:
    weights = jax.random.normal(jax.random.key(0), (_FEATURES, _FEATURES)) / 10
    return {
        "weights": weights,
        "optimizer": _OPTIMIZER.init(weights),
        "position": jnp.int32(0),
    }


@jax.jit
def train_step(state: State, x: jax.Array) -> tuple[State, jax.Array]:
    """Returns the next state, and the loss before the step."""

    def loss(weights: jax.Array) -> jax.Array:
        return jnp.mean((jnp.tanh(x @ weights) - jnp.sin(x)) ** 2)

    value, gradient = jax.value_and_grad(loss)(state["weights"])
    updates, optimizer = _OPTIMIZER.update(gradient, state["optimizer"])
    weights = optax.apply_updates(state["weights"], updates)
    # The position in the data is part of the state: no restart repeats or skips a batch.
    state = {"weights": weights, "optimizer": optimizer, "position": state["position"] + 1}
    return state, value


def restore(
    manager: ocp.CheckpointManager, snapshots: jax_cxl.Snapshots, like: State
) -> tuple[int, State] | None:
    """Returns the newest state and its step; None if there is none."""
    on_disk = manager.latest_step()
    in_pool = snapshots.latest()
    if in_pool is not None and in_pool >= (on_disk or 0):
        return snapshots.restore_latest(like)
    if on_disk is None:
        return None
    return on_disk, manager.restore(on_disk, args=ocp.args.StandardRestore(like))


def main(_: list[str]) -> None:
    logging.set_verbosity(logging.WARNING)  # Orbax tells absl about each file.
    jax_cxl.initialize()
    # `train_step` and Orbax both use XLA's collectives. From here on these go through the pool.
    jax_cxl.replace_collectives().start()
    mesh = jax_cxl.make_mesh(
        (jax.device_count(),), ("data",), axis_types=(jax.sharding.AxisType.Auto,)
    )

    def describe(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        spec = jax.P("data") if leaf.ndim else jax.P()
        return leaf.update(sharding=jax.NamedSharding(mesh, spec))

    like = jax.tree.map(describe, jax.eval_shape(initial_state))
    options = ocp.CheckpointManagerOptions(save_interval_steps=_EVERY.value, max_to_keep=2)
    with (
        ocp.CheckpointManager(os.path.abspath(_FOLDER.value), options=options) as manager,
        jax_cxl.Snapshots(_SNAPSHOTS.value) as snapshots,
    ):
        restored = restore(manager, snapshots, like)
        shardings = jax.tree.map(lambda leaf: leaf.sharding, like)
        step, state = restored or (0, jax.jit(initial_state, out_shardings=shardings)())
        if jax.process_index() == 0:
            print(f"continues from step {step}", flush=True)
        value = jnp.nan
        while step < _STEPS.value:
            x = np.random.default_rng(step).standard_normal((_ROWS, _FEATURES), np.float32)
            rows = jax.make_array_from_callback(
                x.shape, jax.NamedSharding(mesh, jax.P("data")), x.__getitem__
            )
            state, value = train_step(state, rows)
            step += 1
            snapshots.save(step, state)
            manager.save(step, args=ocp.args.StandardSave(state))  # Only at each _EVERY steps.
        loss = float(value)
    if jax.process_index() == 0:
        print(f"step {step}: loss {loss:.6f}", flush=True)


if __name__ == "__main__":
    app.run(main)
