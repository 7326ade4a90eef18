"""Reinforcement learning on a small scale: a learner and two actors, each a job of its own.

    python examples/actor_learner.py

The learner publishes its policy after each step. The actors play with the newest policy, and each
publishes what it has seen. No job waits for the start of another, and any of them may be on another
host that shares the memory. The game is to choose the one of four actions that fits a state best.
"""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags
from common import stores

import jax_cxl

_WHERE = flags.DEFINE_string("where", "shm:actor_learner?size=96MiB", "URI of the store.")
_STEPS = flags.DEFINE_integer("steps", 60, "Steps of the learner.")
_ACTORS = flags.DEFINE_integer("actors", 2, "How many actors play.")
_ROLE = flags.DEFINE_integer("role", -1, "-1: the learner, which starts the actors; else an actor.")

_STATES, _ACTIONS, _GAMES, _RATE = 8, 4, 256, 2.0

Policy = dict[str, jax.Array]


def play(policy: Policy, key: jax.Array) -> dict[str, jax.Array]:
    """Plays games; returns the states (G, 8), the actions (G,) and the rewards (G,), 0 or 1."""
    of_states, of_actions = jax.random.split(key)
    states = jax.random.normal(of_states, (_GAMES, _STATES))
    actions = jax.random.categorical(of_actions, states @ policy["weights"])
    best = jnp.argmax(states[:, :_ACTIONS] - states[:, _ACTIONS:], axis=1)
    return {"states": states, "actions": actions, "rewards": (actions == best).astype(jnp.float32)}


def learn(policy: Policy, seen: dict[str, jax.Array]) -> Policy:
    """Returns the policy after a step of REINFORCE on `seen`, the results of `play`."""

    def objective(policy: Policy) -> jax.Array:
        chances = jax.nn.log_softmax(seen["states"] @ policy["weights"])
        chosen = jnp.take_along_axis(chances, seen["actions"][:, None], 1)[:, 0]
        return jnp.mean(chosen * (seen["rewards"] - jnp.mean(seen["rewards"])))

    return jax.tree.map(lambda x, slope: x + _RATE * slope, policy, jax.grad(objective)(policy))


def act(actor: int) -> None:
    """Plays with each new policy and publishes the games, until the learner's last policy.

    `actor` is the number of this actor.
    """
    store = jax_cxl.Store(_WHERE.value)
    version, step = -1, jax.jit(play)
    while version < _STEPS.value:
        like = {"weights": jax.ShapeDtypeStruct((_STATES, _ACTIONS), jnp.float32)}
        version, policy = store.read("policy", like, newer_than=version)
        key = jax.random.fold_in(jax.random.key(actor), version)
        store.publish(f"actor {actor}", step(policy, key), version=version)
    store.close()


def train() -> None:
    """Publishes policies, and learns from what the actors see when they use these policies."""
    policy = {"weights": jnp.zeros((_STATES, _ACTIONS))}
    names = [f"actor {actor}" for actor in range(_ACTORS.value)]
    step = jax.jit(learn)
    with jax_cxl.Store(_WHERE.value) as store:
        for version in range(_STEPS.value + 1):
            store.publish("policy", policy, version=version)
            # A slow actor may skip a policy, but it never sees half of a policy.
            seen = [store.read(name, newer_than=version - 1).tree for name in names]
            together = {key: np.concatenate([one[key] for one in seen]) for key in seen[0]}
            if version % 10 == 0:
                print(f"version {version}: mean reward {together['rewards'].mean():.3f}")
            policy = step(policy, together)
        store.flush("policy")


def main(_: list[str]) -> None:
    if _ROLE.value >= 0:
        act(_ROLE.value)
        return
    stores.remove(_WHERE.value)
    actors = [
        subprocess.Popen([sys.executable, __file__, *sys.argv[1:], f"--role={actor}"])
        for actor in range(_ACTORS.value)
    ]
    try:
        train()
        if any(actor.wait() for actor in actors):
            raise SystemExit("an actor failed")
    finally:
        for actor in actors:
            actor.kill()
        stores.remove(_WHERE.value)


if __name__ == "__main__":
    app.run(main)
