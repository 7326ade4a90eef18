"""Times a training step of examples/train_moe.py with several exchanges, which take turns.

    python -m jax_cxl.launch -n 2 --devices-per-process 1
        benchmarks/models/moe_training.py --json=moe.json

examples/experts/exchanges.py defines the exchanges. With `dispatch`, `ragged` and `dense`, tokens
and parameters go through the pool. With `dense-lax`, JAX's own collectives move tokens and
parameters. `halves` is `dispatch` with two micro-batches, one of which computes while the other one
communicates. For each exchange the script times three programs. The times are those of the slowest
rank:

    step_ms                         the training step
    step_ms_without_communication   the step with local copies in place of the communication
    communication_ms                only what the step communicates, forward and backward

The share of the communication that computation hides is 1 - (step_ms -
step_ms_without_communication) / communication_ms. The communication of an exchange includes its
work on the device around the collectives, such as grouping rows. For `halves`, the last two
programs are those of `dispatch`, without micro-batches.

`--trace=FOLDER` shows which operations overlap: JAX's profiler traces one more turn of each program
on rank 0. Open FOLDER/.../perfetto_trace.json.gz at ui.perfetto.dev.

Flags of the example change its sizes; on GPUs `--preset=moe`. Environment variables choose how NCCL
communicates: for example through host memory with NCCL_P2P_DISABLE=1.
"""

import argparse
import contextlib
import importlib
import os
import pathlib
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples"))

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from common import training
from common.trainer import AXIS
from experts import exchanges
from experts.moe_trainer import MoeTrainer
from sharded import fsdp, namespaces

import jax_cxl
from jax_cxl._commands.measuring import measure, report, results_file
from jax_cxl._commands.measuring.world import World

_CALLS = {"cpu": 1, "gpu": 4}  # of a program in a turn


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ways", default="dispatch,halves,dense-lax", help="default: %(default)s")
    parser.add_argument("--experts", type=int, default=8, help="of a layer (default: 8)")
    parser.add_argument("--choices", type=int, default=2, help="of a token (default: 2)")
    parser.add_argument("--capacity_factor", type=float, default=1.25, help="default: 1.25")
    parser.add_argument("--repeats", type=int, default=7, help="turns (default: 7)")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE")
    parser.add_argument("--trace", type=pathlib.Path, metavar="FOLDER")
    options, others = parser.parse_known_args()
    flags.FLAGS([sys.argv[0], *others])
    training.prepare(sys.argv[:1])
    load = os.getloadavg()[0]
    jax_cxl.initialize()
    world = World(jax.process_index(), jax.process_count())
    ways = {name: Way(name, options) for name in options.ways.split(",")}
    programs = {
        (name, label): program
        for name, way in ways.items()
        for label, program in way.programs.items()
    }
    times: dict[tuple[str, str], list[float]] = {key: [] for key in programs}
    for turn in range(-1, options.repeats):
        for key, program in programs.items():
            took = _milliseconds(world, program)
            if turn >= 0:  # The first turn does not count.
                times[key].append(took)
    rows = [_row(name, way, times) for name, way in ways.items()]
    for (name, label), program in programs.items() if options.trace else ():
        with _traced(options.trace / name / label, world):
            _milliseconds(world, program)
    if world.rank == 0:
        for row in rows:
            print(row, flush=True)
        if options.json:
            command = results_file.command_line("benchmarks/models/moe_training.py", sys.argv[1:])
            results_file.write(options.json, report.header(load, command) | {"results": rows})


class Way:
    """The three programs of an exchange, compiled.

    Attributes:
      programs: maps each label, such as `step_ms`, to a function that runs that program once and
        returns its results.
      losses: the losses of the steps so far.
      parameters: number of parameters of the model.
      tokens: number of tokens of a device in a step.
    """

    def __init__(self, name: str, options: argparse.Namespace):
        sizes, dtype, optimizer = training.model()
        collectives: Any = namespaces.Lax() if name == "dense-lax" else jax_cxl
        exchange = {
            "dispatch": exchanges.dispatch,
            "halves": exchanges.dispatch,
            "ragged": exchanges.ragged,
            "dense": exchanges.dense(jax_cxl),
            "dense-lax": exchanges.dense(importlib.import_module("jax.lax")),
        }[name]

        def trainer(collectives: Any, exchange: Callable[..., Any], *in_halves: bool) -> MoeTrainer:
            return MoeTrainer(
                *(sizes, dtype, optimizer, collectives, exchange),
                *(options.experts, options.choices, options.capacity_factor, *in_halves),
            )

        real = trainer(collectives, exchange, name == "halves")
        without = trainer(namespaces.StandIns(collectives), exchanges.stand_in)
        batch = training.batch(real, training.load_corpus(), 1)
        self.parameters = real.parameter_count
        self.tokens = (batch.shape[0] // jax.device_count()) * (batch.shape[1] - 1)
        self.losses: list[Any] = []
        self._states = {}
        for each in (real, without):
            state = each.init(0)
            each.step = each.step.lower(state, batch).compile()
            self._states[each] = state
        shard = jnp.copy(self._states[real].parameters["layers"][0]["attention"])
        capacity = exchanges.capacity(
            self.tokens,
            options.choices,
            options.experts,
            jax.device_count(),
            options.capacity_factor,
        )
        agreed = exchanges.Sizes(AXIS, options.experts, capacity)
        alone = _communication(collectives, exchange, agreed, dtype, sizes.layers)
        arguments = [*_tokens(self.tokens, sizes.width, dtype, options), shard]
        compiled = alone.lower(*arguments).compile()

        def step(each: MoeTrainer) -> Any:
            self._states[each], metrics = each.step(self._states[each], batch)
            if each is real:
                self.losses.append(metrics["train_loss"])
            return metrics

        self.programs: dict[str, Callable[[], Any]] = {
            "step_ms": lambda: step(real),
            "step_ms_without_communication": lambda: step(without),
            "communication_ms": lambda: compiled(*arguments),
        }


def _tokens(tokens: int, width: int, dtype: Any, options: argparse.Namespace) -> list[jax.Array]:
    """Returns random tokens of all devices, k different experts for each, and equal weights."""
    rng = np.random.default_rng(0)
    rows, k = tokens * jax.device_count(), options.choices
    chosen = rng.random((rows, options.experts)).argsort(1)[:, :k].astype(np.int32)
    values = [
        rng.standard_normal((rows, width), np.float32).astype(dtype),
        *(chosen, np.full((rows, k), 1 / k, np.float32)),
    ]
    sharding = jax.NamedSharding(fsdp.device_mesh(), jax.P(AXIS))
    return [
        jax.make_array_from_callback(a.shape, sharding, lambda index, a=a: a[index]) for a in values
    ]


def _communication(
    collectives: Any, exchange: Callable[..., Any], sizes: exchanges.Sizes, dtype: Any, layers: int
) -> Any:
    """Returns a program that does only the communication of a step, one layer after another.

    The program gathers the parameters of a layer, and exchanges tokens with experts that return
    their rows unchanged. Then it does the same backward.
    """

    def body(x, chosen, weights, shard):
        def forward(x, weights, shard):
            vector = collectives.all_gather(shard.astype(dtype), AXIS, tiled=True)
            return exchange(x, chosen, weights, lambda rows: rows, sizes), vector

        def layer(carry, _):
            results, backward = jax.vjp(forward, *carry)
            # The barrier keeps XLA from removing communication whose results are not used.
            return jax.lax.optimization_barrier(backward(results)), None

        return jax.lax.scan(layer, (x, weights, shard), None, layers)[0]

    split = jax.P(AXIS)
    return jax.jit(
        jax.shard_map(
            body,
            mesh=fsdp.device_mesh(),
            in_specs=(split,) * 4,
            out_specs=(split,) * 3,
            check_vma=False,
        )
    )


def _milliseconds(world: World, program: Callable[[], Any]) -> float:
    """Returns the milliseconds of one run of a program, on the slowest rank."""
    calls = _CALLS[jax.default_backend()]
    world.barrier()
    start = time.perf_counter()
    for _ in range(calls):
        results = program()
    jax.block_until_ready(results)
    return max(world.gather(time.perf_counter() - start)) / calls * 1e3


def _traced(folder: pathlib.Path, world: World) -> contextlib.AbstractContextManager[None]:
    if world.rank > 0:
        return contextlib.nullcontext()
    return jax.profiler.trace(str(folder), create_perfetto_trace=True)


def _row(name: str, way: Way, times: dict[tuple[str, str], list[float]]) -> dict[str, Any]:
    with_it, without, alone = (statistics.median(times[name, label]) for label in way.programs)
    return {
        "way": name,
        "ranks": jax.device_count(),
        "parameters": way.parameters,
        "tokens_of_a_rank": way.tokens,
        **{label: measure.spread(times[name, label]) for label in way.programs},
        "tokens_per_second": round(way.tokens * jax.device_count() / with_it * 1e3),
        "hidden": round(1 - max(with_it - without, 0.0) / alone, 4),
        "losses": [round(float(loss), 5) for loss in (way.losses[0], way.losses[-1])],
    }


if __name__ == "__main__":
    main()
