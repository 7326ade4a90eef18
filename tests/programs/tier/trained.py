"""Trains with a pooled optimizer while processes are killed, under `jax_cxl.launch`.

Half of the deaths come in the middle of an update, after a random number of writes; the others come
at random times. Each step prints its loss, which does not depend on the number of processes. So the
losses are those of an undisturbed run only if every restored state was right and complete.
"""

import functools
import os
import pathlib
import random
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import app, flags

import jax_cxl

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "helpers"))
import deadly

_WHERE = flags.DEFINE_string("where", None, "URI of the store.", required=True)
_KILLS = flags.DEFINE_integer("kills", 0, "How many times a process is killed.")
_STEPS = flags.DEFINE_integer("steps", 10, "Steps of training after the last death.")
_UNTIL = flags.DEFINE_integer("until", 0, "Ends after this step instead.")
_SEED = flags.DEFINE_integer("seed", 0, "Seed of the deaths.")

_FEATURES = 192


def tell_of_death(when: str) -> None:
    deadly.say(died=when)


def loss_and_gradients(shards, step):
    """Returns the loss, and this rank's rows of the gradients. Each rank computes all rows."""
    x = jax.random.normal(jax.random.fold_in(jax.random.key(0), step), (16, _FEATURES))
    whole = [jax_cxl.all_gather(w, "rank", tiled=True) for w in shards]

    def loss(weights):
        y = x
        for w in weights:
            y = jnp.tanh(y @ w)
        return jnp.mean((y - x) ** 2)

    value, gradients = jax.value_and_grad(loss)(whole)
    rows = shards[0].shape[0]
    first = jax.lax.axis_index("rank") * rows
    return value, [jax.lax.dynamic_slice_in_dim(g, first, rows) for g in gradients]


class Training:
    """One life of the job: from a restored state to the next death."""

    def __init__(self, store):
        mesh = jax_cxl.make_mesh(
            (jax.device_count(),), ("rank",), axis_types=(jax.sharding.AxisType.Auto,)
        )
        self.gradients = jax.jit(
            jax.shard_map(
                loss_and_gradients,
                mesh=mesh,
                in_specs=(jax.P("rank"), jax.P()),
                out_specs=(jax.P(), jax.P("rank")),
                check_vma=False,
            )
        )
        sharding = jax.NamedSharding(mesh, jax.P("rank"))
        rng = np.random.default_rng(0)
        weights = [rng.normal(0, 0.1, (_FEATURES,) * 2).astype(np.float32) for _ in range(4)]
        self.params = [
            jax.make_array_from_callback(w.shape, sharding, lambda index, w=w: w[index])
            for w in weights
        ]
        adam = optax.adamw(1e-3)
        self.optimizer = jax_cxl.pooled(adam, store, "adamw", group_bytes=600_000)


def main(_) -> None:
    jax_cxl.initialize()
    store = jax_cxl.Store(_WHERE.value)
    kills = int(os.environ.get("JAX_CXL_LAUNCH_RESTARTS", "0"))
    rng = random.Random(f"{_SEED.value} {kills}")
    victim, at_step, writes, after, in_update = (
        rng.randrange(jax.process_count()),
        rng.randrange(1, 4),
        rng.randrange(1, 17),
        rng.uniform(0.01, 0.3),
        rng.random() < 0.5,
    )
    dies = kills < _KILLS.value and jax.process_index() == victim
    training = Training(store)
    found = training.optimizer.restore_latest(training.params)
    params, state = found or (training.params, training.optimizer.init(training.params))
    deadly.say(found=state.step)
    begun = state.step
    if dies and not in_update:
        tell_of_death("at some time")
        deadly.die_after(after)
    end = _UNTIL.value or begun + _STEPS.value
    while kills < _KILLS.value or state.step < end:
        loss, gradients = training.gradients(params, np.int32(state.step))
        text = np.asarray(loss.addressable_data(0)).tobytes().hex()
        if jax.process_index() == 0:
            deadly.say(step=state.step, loss=text)
        if dies and in_update and state.step == begun + at_step:
            tell = functools.partial(tell_of_death, "in an update")
            devices = store._names.devices()
            devices.core = deadly.DeadlyMemory(devices.core, deadly.Deaths(writes, tell))
        params, state = training.optimizer.step(params, gradients, state)
        if jax.process_index() == 0:
            deadly.say(returned=state.step)
        if state.step % 8 == 0:  # Writes of several lengths of time beside steps.
            time.sleep(0.002 * rng.random())
    training.optimizer.wait()
    store.close()
    deadly.say(end=state.step, kills=kills)


if __name__ == "__main__":
    app.run(main)
