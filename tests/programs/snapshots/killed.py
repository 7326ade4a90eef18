"""Trains on snapshots while processes are killed, under `jax_cxl.launch --restarts`.

Half of the deaths come in the middle of a save, after a random number of writes; the others come at
random times. The state contains a digest of all losses so far. So the last digest equals that of an
undisturbed run only if every restored snapshot was right, and belonged to one step. Victims and
survivors print a line of JSON for each death, with times of the host's monotonic clock. Process 0
prints such a line at the end.
"""

import os
import pathlib
import random
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import xxhash
from absl import app, flags

import jax_cxl

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "helpers"))
import deadly

_WHERE = flags.DEFINE_string("where", None, "URI of the snapshots.", required=True)
_KILLS = flags.DEFINE_integer("kills", 0, "How many times a process is killed.")
_STEPS = flags.DEFINE_integer("steps", 40, "Steps of training after the last death.")
_FEATURES = flags.DEFINE_integer("features", 384, "The weights are features x features.")
_SEED = flags.DEFINE_integer("seed", 0, "Seed of the deaths.")
_PARITY = flags.DEFINE_integer("parity", 0, "As for Snapshots.")


def now() -> float:
    return round(time.monotonic(), 4)


def tell_of_death(kills: int, when: float) -> None:
    deadly.say(death=kills, died=round(when, 4))


def train_step(weights, step):
    """A step whose result, bit for bit, depends only on weights and step."""
    rank = jax.lax.axis_index("rank")
    x = jax.random.normal(jax.random.fold_in(jax.random.key(rank), step), (16, weights.shape[1]))
    whole = jax_cxl.all_gather(weights, "rank", tiled=True)
    value, gradient = jax.value_and_grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(whole)
    return weights - jax_cxl.psum_scatter(gradient, "rank", tiled=True), jax_cxl.psum(value, "rank")


class Training:
    """One life of the job: from a snapshot to the next death."""

    def __init__(self):
        self._mesh = jax_cxl.make_mesh(
            (jax.device_count(),), ("rank",), axis_types=(jax.sharding.AxisType.Auto,)
        )
        self._step = jax.jit(
            jax.shard_map(
                train_step,
                mesh=self._mesh,
                in_specs=(jax.P("rank"), jax.P()),
                out_specs=(jax.P("rank"), jax.P()),
                check_vma=False,
            )
        )

    def initial(self):
        shape = (_FEATURES.value,) * 2
        weights = np.random.default_rng(0).normal(size=shape).astype(np.float32)

        def on_mesh(x, spec):
            sharding = jax.NamedSharding(self._mesh, spec)
            return jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])

        return {
            "weights": on_mesh(weights, jax.P("rank")),
            "start": on_mesh(weights[0], jax.P()),
            "digest": 0,
            "step": 0,
        }

    def step(self, state):
        weights, loss = self._step(state["weights"], np.int32(state["step"]))
        loss = np.asarray(loss.addressable_data(0)).tobytes()
        digest = xxhash.xxh64_intdigest(loss + state["digest"].to_bytes(8, "little"))
        return state | {"weights": weights, "digest": digest, "step": state["step"] + 1}


def main(_) -> None:
    jax_cxl.initialize()
    snapshots = jax_cxl.Snapshots(_WHERE.value, parity=_PARITY.value)
    kills = int(os.environ.get("JAX_CXL_LAUNCH_RESTARTS", "0"))
    rng = random.Random(f"{_SEED.value} {kills}")
    victim, at_step, writes, after, in_save = (
        rng.randrange(jax.process_count()),
        rng.randrange(2, 5),  # The first save makes the memory.
        rng.randrange(1, 25),
        rng.uniform(0, 0.1),
        rng.random() < 0.5,
    )
    dies = kills < _KILLS.value and jax.process_index() == victim
    try:
        training = Training()
        like = training.initial()
        found = snapshots.restore_latest(like)
        step, state = found or (0, like)
        if kills:
            deadly.say(after=kills - 1, found=step, restored=now())
        assert state["step"] == step, (state["step"], step)
        np.testing.assert_array_equal(
            state["start"].addressable_data(0), like["start"].addressable_data(0)
        )
        begun = step
        if dies and not in_save:
            tell_of_death(kills, time.monotonic() + after)
            deadly.die_after(after)
        while kills < _KILLS.value or step < begun + _STEPS.value:
            state = training.step(state)
            if step == begun and kills:
                deadly.say(again=kills - 1, stepped=now())
            step += 1
            if dies and in_save and step == begun + at_step:
                devices = snapshots._publisher.section.devices
                tell = lambda: tell_of_death(kills, time.monotonic())  # noqa: E731
                devices.core = deadly.DeadlyMemory(devices.core, deadly.Deaths(writes, tell))
            snapshots.save(step, state)
            deadly.say(life=kills, returned=step)
            if step % 8 == 0:  # Saves of several lengths of time beside steps.
                time.sleep(0.002 * rng.random())
        snapshots.wait()
    except jax_cxl.PeerLostError:
        deadly.say(lost=kills, error=now())
        raise
    snapshots.close()
    if jax.process_index() == 0:
        deadly.say(kills=kills, step=step, digest=state["digest"])


if __name__ == "__main__":
    app.run(main)
