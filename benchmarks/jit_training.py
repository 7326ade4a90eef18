"""Measures training by `jax.jit` alone: XLA's own collectives between processes, and the pool's.

    python -m jax_cxl.launch -n 2 --devices-per-process 1 benchmarks/jit_training.py --json j.json

Two programs, whose collectives XLA's partitioner inserts:

    data_parallel   a step of 4 layers of 256 x 256, 64 rows a device; the gradients are summed
    example         the step of examples/train_jit.py

Each is compiled without jax_cxl's compiler hook, where JAX's Gloo communicates, and under
`jax_cxl.replace_collectives`. The two take turns. A row of the results has the times of both, the
ratios of the turns, and the copy bound: how long copying the bytes that go through the pool takes,
measured in the same turns.

Compilation takes turns too: of the example's step, on all ranks at once, and of a program without
collectives, where the hook searches the bytes of the module once.

Flags of the example change its sizes.
"""

import argparse
import contextlib
import dataclasses
import os
import pathlib
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "examples"))

import jax
import jax.numpy as jnp
import numpy as np
import training
from absl import flags
from jax.extend import xla
from jit_trainer import JitTrainer

import jax_cxl
from jax_cxl import _compat
from jax_cxl._bench import report, results_file
from jax_cxl._bench.bound import CopyBound
from jax_cxl._bench.world import World
from jax_cxl._takeover import hook, install

_LAYERS, _WIDTH, _ROWS = 4, 256, 64
_OWN, _OURS = _MODES = "xla", "jax_cxl"


@dataclasses.dataclass
class Program:
    """A jitted training step.

    Attributes:
        name: its name in the results.
        step: (state, *arguments) -> (state, loss); it may donate the state.
        state: the first state.
        arguments: the same in every step.
        calls: steps in a turn.
    """

    name: str
    step: Any
    state: Any
    arguments: tuple
    calls: int


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=15, help="turns of training, 0: none")
    parser.add_argument(
        "--compilations", type=int, default=15, help="turns of compilation, 0: none"
    )
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE")
    options, others = parser.parse_known_args()
    flags.FLAGS([sys.argv[0], *others])
    load = os.getloadavg()[0]
    jax_cxl.initialize()
    world = World(jax.process_index(), jax.process_count())
    example = _example()
    rows = []
    if options.repeats:
        rows += [_train(world, program, options.repeats) for program in (_data_parallel(), example)]
    if options.compilations:
        programs = example, _without_collectives()
        rows += [_compile(world, program, options.compilations) for program in programs]
    if world.rank == 0:
        for row in rows:
            print(_sentence(row), flush=True)
        if options.json:
            command = results_file.command_line("benchmarks/jit_training.py", sys.argv[1:])
            results_file.write(options.json, report.header(load, command) | {"results": rows})


def _data_parallel() -> Program:
    mesh = jax.sharding.Mesh(np.asarray(jax.devices()), ("data",))

    def place(value: np.ndarray, *axes: str) -> jax.Array:
        sharding = jax.NamedSharding(mesh, jax.P(*axes))
        return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])

    def normal(*shape: int) -> np.ndarray:
        return generator.standard_normal(shape, np.float32)

    def loss(weights: list[jax.Array], x: jax.Array, y: jax.Array) -> jax.Array:
        for w in weights:
            x = jnp.tanh(x @ w)
        return jnp.mean((x - y) ** 2)

    @jax.jit
    def step(weights: list[jax.Array], x: jax.Array, y: jax.Array) -> Any:
        value, gradients = jax.value_and_grad(loss)(weights, x, y)
        return [w - 0.1 * g for w, g in zip(weights, gradients, strict=True)], value

    generator = np.random.default_rng(0)
    weights = [place(normal(_WIDTH, _WIDTH) / _WIDTH**0.5) for _ in range(_LAYERS)]
    rows = _ROWS * mesh.size
    batch = tuple(place(normal(rows, _WIDTH), "data") for _ in range(2))
    return Program("data_parallel", step, weights, batch, 20)


def _example() -> Program:
    sizes, dtype, optimizer = training.model()
    trainer = JitTrainer(sizes, dtype, optimizer)
    tokens = training.batch(trainer, training.load_corpus(), 1)
    return Program("example", trainer.step, trainer.init(0), (tokens,), 2)


def _without_collectives() -> Program:
    def loss(layers: list[jax.Array], x: jax.Array) -> jax.Array:
        for w in layers:
            x = jax.nn.softmax(jnp.tanh(x @ w))
        return jnp.sum(x)

    matrix = jnp.ones((_WIDTH, _WIDTH))
    step = jax.jit(jax.value_and_grad(loss))
    return Program("without_collectives", step, [matrix] * 16, (matrix,), 1)


@contextlib.contextmanager
def _mode(mode: str) -> Iterator[None]:
    """Makes programs that are compiled in it use one kind of collectives."""
    if mode == _OURS:
        with jax_cxl.replace_collectives():
            yield
        return
    # Where the hook is registered, XLA writes each module for it.
    removed = xla.clear_hlo_module_transformation("jax_cxl", platforms="cpu")
    try:
        yield
    finally:
        if removed:
            _compat.register_compiler_hook("cpu", install._on_module)


def _compiled(program: Program) -> Callable[[], Any]:
    """Returns a function that compiles the step anew."""
    jax.clear_caches()
    return program.step.lower(program.state, *program.arguments).compile


def _train(world: World, program: Program, turns: int) -> dict[str, Any]:
    """Returns the times of a step with both kinds of collectives, on the slowest rank."""
    steps, states, losses = {}, {}, {}
    for mode in _MODES:
        with _mode(mode):
            steps[mode] = _compiled(program)()
        states[mode] = jax.tree.map(jnp.copy, program.state)

    def run(mode: str, calls: int) -> float:
        jax.block_until_ready(states[mode])
        world.barrier()
        start = time.perf_counter()
        for _ in range(calls):
            states[mode], losses[mode] = steps[mode](states[mode], *program.arguments)
        jax.block_until_ready((states[mode], losses[mode]))
        return max(world.gather(time.perf_counter() - start)) / calls * 1e3

    for mode in _MODES:
        run(mode, program.calls)
    before = jax_cxl.stats()
    for mode in _MODES:
        run(mode, program.calls)
    after = jax_cxl.stats()
    published = (after.bytes_published - before.bytes_published) // program.calls
    retrieved = (after.bytes_retrieved - before.bytes_retrieved) // program.calls
    copies = CopyBound(world, published)
    times: dict[str, list[float]] = {mode: [] for mode in _MODES}
    bounds, communication = [], []
    for turn in range(turns):
        for mode in _MODES if turn % 2 else _MODES[::-1]:
            seconds = jax_cxl.stats().seconds
            times[mode].append(run(mode, program.calls))
            if mode == _OURS:
                communication.append((jax_cxl.stats().seconds - seconds) / program.calls * 1e3)
        rates = copies.measure()
        bounds.append((published / rates.write + retrieved / rates.read) * 1e3)
    first, second = (np.asarray(jax.tree.leaves(losses[mode])) for mode in _MODES)
    return {
        "measurement": "step",
        "program": program.name,
        "ranks": world.size,
        "turns": turns,
        "steps_in_a_turn": program.calls,
        **{f"{mode}_ms": _spread(times[mode]) for mode in _MODES},
        "speedup": _ratios(times[_OWN], times[_OURS]),
        "bytes_written_and_read": [published, retrieved],
        "copy_bound_ms": _spread(bounds),
        "under_way_ms": _spread(communication),
        "largest_relative_loss_difference": float(np.max(np.abs(second / first - 1))),
    }


def _compile(world: World, program: Program, turns: int) -> dict[str, Any]:
    """Returns the times of compilation with both kinds of collectives, on the slowest rank."""
    times: dict[str, list[float]] = {mode: [] for mode in _MODES}
    processor: dict[str, list[float]] = {mode: [] for mode in _MODES}
    hooks, modules = [], []

    def transform(data: bytes, *arguments: Any) -> bytes | None:
        start = time.perf_counter()
        result = original(data, *arguments)
        hooks.append((time.perf_counter() - start) * 1e3)
        modules.append(data)
        return result

    original = hook.transform
    with mock.patch.object(hook, "transform", transform):
        for turn in range(-1, turns):
            for mode in _MODES if turn % 2 else _MODES[::-1]:
                with _mode(mode):
                    compiling = _compiled(program)
                    world.barrier()
                    start, used = time.perf_counter(), time.process_time()
                    compiling()
                    took = time.perf_counter() - start, time.process_time() - used
                if turn >= 0:  # The first turn does not count.
                    times[mode].append(max(world.gather(took[0])) * 1e3)
                    processor[mode].append(max(world.gather(took[1])) * 1e3)
    return {
        "measurement": "compilation",
        "program": program.name,
        "ranks": world.size,
        "turns": turns,
        **{f"{mode}_ms": _spread(times[mode]) for mode in _MODES},
        "longer": _ratios(times[_OURS], times[_OWN]),
        **{f"{mode}_processor_ms": _spread(processor[mode]) for mode in _MODES},
        "longer_on_the_processor": _ratios(processor[_OURS], processor[_OWN]),
        "module_bytes": len(modules[-1]),
        "hook_ms": _spread(hooks[1:]),
    }


def _spread(values: list[float]) -> dict[str, float]:
    quartiles = statistics.quantiles(values, n=4) if len(values) > 1 else [values[0]] * 3
    names = "min", "quarter", "median", "three_quarters", "max"
    found = min(values), *quartiles, max(values)
    return {name: round(value, 4) for name, value in zip(names, found, strict=True)}


def _ratios(ones: list[float], others: list[float]) -> dict[str, float]:
    """Returns how many times as long ones took as others, in each turn."""
    return _spread([one / other for one, other in zip(ones, others, strict=True)])


def _sentence(row: dict[str, Any]) -> str:
    own, ours = (row[f"{mode}_ms"]["median"] for mode in _MODES)
    text = f"{row['measurement']} of {row['program']}: {_OWN} {own:.2f} ms, {_OURS} {ours:.2f} ms"
    if row["measurement"] == "step":
        ratio, bound = row["speedup"], row["copy_bound_ms"]["median"]
        share = f"copy bound {bound:.3f} ms"
    else:
        ratio = row["longer"]
        share = f"hook {row['hook_ms']['median']:.3f} ms of {row['module_bytes']:,} bytes"
    return f"{text}, x {ratio['median']:.3f} ({ratio['min']:.3f} to {ratio['max']:.3f}), {share}"


if __name__ == "__main__":
    main()
