"""Measures the time of a training step, and how much of its communication is hidden."""

import functools
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from sharded import fsdp

Tree = Any

_TURNS = 5
_CALLS = 8  # in a turn


def milliseconds(functions: dict[str, Callable[[], Any]]) -> dict[str, dict[str, float]]:
    """Times functions. They take turns, with several calls in a turn. The first turn is left out.

    Turns let other work on the machine affect all functions equally. The calls of a turn follow
    each other without a pause, as in training.

    Returns:
      Name -> {"median", "min", "max"} of a call.
    """
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(1 + _TURNS):
        for name, function in functions.items():
            start = time.perf_counter()
            for _ in range(_CALLS):
                result = function()
            jax.block_until_ready(result)
            times[name].append((time.perf_counter() - start) / _CALLS * 1e3)

    def figures(values: list[float]) -> dict[str, float]:
        found = {"median": statistics.median(values), "min": min(values), "max": max(values)}
        return {name: round(figure, 3) for name, figure in found.items()}

    return {name: figures(values[1:]) for name, values in times.items()}


def measure(
    step: Callable,
    stand_in_step: Callable,
    state: Tree,
    tokens: jax.Array,
    collectives: Any,
    dtype: Any,
) -> dict[str, Any]:
    """Measures training steps of a model whose layers are stacked.

    Args:
      step: (state, tokens) -> (state, metrics); donates the state.
      stand_in_step: `step` with local copies in place of the collectives (`StandIns`).
      state: the training state, which is donated.
      tokens: a batch.
      collectives: the collectives that `step` uses.
      dtype: the dtype in which the layers are communicated.

    Returns:
      {"step_ms", "step_ms_without_communication", "communication_ms", each {"median", "min",
      "max"}; "exposed_communication_share", a share of the step; "hidden_communication_share", a
      share of the communication}. `communication_ms` is the time of the large collectives of a
      step, one after another, with nothing beside them.
    """
    shards = jnp.copy(state.parameters["layers"])
    alone = communication(collectives, dtype)
    # Each program has a state of its own, because the stand-ins compute wrong parameters.
    states = {step: state, stand_in_step: jax.tree.map(jnp.copy, state)}

    def next_state(program: Callable) -> Any:
        states[program], metrics = program(states[program], tokens)
        return states[program], metrics

    programs: dict[str, Callable[[], Any]] = {
        "step_ms": functools.partial(next_state, step),
        "step_ms_without_communication": functools.partial(next_state, stand_in_step),
        "communication_ms": functools.partial(alone, shards),
    }
    figures: dict[str, Any] = dict(milliseconds(programs))
    with_it, without, alone_ms = (figure["median"] for figure in figures.values())
    exposed = max(with_it - without, 0.0)
    figures["exposed_communication_share"] = round(exposed / with_it, 4)
    figures["hidden_communication_share"] = round(1 - exposed / alone_ms, 4)
    return figures


def communication(collectives: Any, dtype: Any) -> Callable[[jax.Array], Any]:
    """Returns a program that runs only the collectives that a training step runs for its layers.

    Each layer is gathered for the forward pass and, except the last layer, again for the backward
    pass. Its gradients are scattered.
    """

    def gather(total, shard):
        vector = collectives.all_gather(shard, fsdp.AXIS, tiled=True)
        # The barrier orders the collectives, and XLA cannot drop a collective whose result is used.
        return lax.optimization_barrier((total + vector[0], vector, shard))

    def scatter(vector):
        return collectives.psum_scatter(vector, fsdp.AXIS, tiled=True)

    def layer(total, shard):
        total, _, shard = gather(total, shard)
        total, vector, _ = gather(total, shard)
        return total, scatter(vector)

    def body(shards):
        shards = shards.astype(dtype)
        total = lax.pcast(jnp.zeros((), dtype), fsdp.AXIS, to="varying")
        total, scattered = lax.scan(layer, total, shards[:-1])
        total, vector, _ = gather(total, shards[-1])
        return scattered, scatter(vector), total[None]

    row = jax.P(fsdp.AXIS)
    return jax.jit(
        jax.shard_map(
            body,
            mesh=fsdp.device_mesh(),
            in_specs=jax.P(None, fsdp.AXIS),
            out_specs=(jax.P(None, fsdp.AXIS), row, row),
        )
    )
