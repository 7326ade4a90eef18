"""Measures training by `jax.jit` alone, with XLA's own collectives and with those of the pool.

    python -m jax_cxl.launch -n 2 --devices-per-process 1
        benchmarks/models/jit_training.py --json j.json

Two programs, whose collectives XLA's partitioner inserts:

    data_parallel   a step of dense layers, whose gradients are summed: 4 layers of 256 x 256 and 64
                    rows a device; on GPUs 8 layers of 4,096 x 4,096 and 4,096 rows
    example         the step of examples/train_jit.py

Each program is compiled in several ways. Without jax_cxl's compiler hook, JAX's Gloo or NCCL
communicates. Under `jax_cxl.replace_collectives`, the pool does. In a third way, calls that do
nothing replace the collectives, which gives wrong results. On CPUs there is also a way with calls
that only wait for the other ranks. On GPUs there is also a way through the pool without early
starts (`early_bytes=None`). The ways take turns. In the same turns, the collectives of the step run
alone, one after another, by XLA and through the pool. A row of the results has all times, the
ratios of the turns, and the share of the time of the collectives that is hidden behind computation.

On CPUs the script also measures compilation with the hook and without, in turn. It compiles the
example's step, on all ranks at once, and a program without collectives. For a program without
collectives the hook only searches the bytes of the module once.

Flags of the example change its sizes. `--programs` chooses programs. On GPUs, environment variables
choose how NCCL communicates: for example through host memory with NCCL_P2P_DISABLE=1.
"""

import argparse
import os
import pathlib
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples"))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "collectives"))

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from common import training
from jit import modes, programs
from jit.modes import IN_PLACE, NOTHING, OURS, OWN, WAITING
from jit.programs import Program

import jax_cxl
from jax_cxl._commands.measuring import report, results_file
from jax_cxl._commands.measuring.world import World
from jax_cxl._takeover import hook

# Sizes of data_parallel: layers, width of a layer, rows on each device.
_DENSE = {"cpu": (4, 256, 64), "gpu": (8, 4096, 4096)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=15, help="turns of training, 0: none")
    parser.add_argument(
        "--compilations", type=int, help="turns of compilation, 0: none (15 on CPUs, 0 on GPUs)"
    )
    parser.add_argument("--programs", default="data_parallel,example", help="default: %(default)s")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE")
    options, others = parser.parse_known_args()
    flags.FLAGS([sys.argv[0], *others])
    training.prepare(sys.argv[:1])
    load = os.getloadavg()[0]
    jax_cxl.initialize()
    world = World(jax.process_index(), jax.process_count())
    modes.prepare(world)
    on_cpus = jax.default_backend() == "cpu"
    if options.compilations is None:
        options.compilations = 15 if on_cpus else 0
    makers: dict[str, Callable[[], Program]] = {
        "data_parallel": lambda: programs.data_parallel(*_DENSE[jax.default_backend()]),
        "example": programs.example,
    }
    rows = []

    def add(row: dict[str, Any]) -> None:
        rows.append(row)
        if world.rank == 0:
            print(_sentence(row), flush=True)
            if options.json:
                command = results_file.command_line(
                    "benchmarks/models/jit_training.py", sys.argv[1:]
                )
                results_file.write(options.json, report.header(load, command) | {"results": rows})

    if options.repeats:
        for name in options.programs.split(","):
            add(_train(world, makers[name](), options.repeats))
    if options.compilations:
        for program in programs.example(), programs.without_collectives(_DENSE["cpu"][1]):
            add(_compile(world, program, options.compilations))


def _compiled(program: Program) -> Callable[[], Any]:
    """Clears JAX's caches; returns a function that compiles the step of the program."""
    jax.clear_caches()
    return program.step.lower(program.state, *program.arguments).compile


class _Turns:
    """Runs the steps of a program, compiled in each of several modes (modes.py).

    All ranks step together.
    """

    def __init__(self, world: World, program: Program, among: tuple[str, ...]):
        self._world, self._program = world, program
        self._steps, self._states = {}, {}
        self._losses: dict[str, Any] = {}
        for mode in among:
            with modes.compiling(mode):
                self._steps[mode] = _compiled(program)()
            self._states[mode] = jax.tree.map(jnp.copy, program.state)
        for mode in among:
            self.run(mode)
        # The losses of all modes after the same few steps, for comparison. Training amplifies
        # rounding, so later losses would differ more.
        self.first_losses = dict(self._losses)
        self.times: dict[str, list[float]] = {mode: [] for mode in among}

    def run(self, mode: str) -> float:
        """Runs steps in this mode; returns the milliseconds of one step on the slowest rank."""
        step, state, calls = self._steps[mode], self._states[mode], self._program.calls
        jax.block_until_ready(state)
        self._world.barrier()
        start = time.perf_counter()
        for _ in range(calls):
            state, loss = step(state, *self._program.arguments)
        jax.block_until_ready((state, loss))
        self._states[mode], self._losses[mode] = state, loss
        return max(self._world.gather(time.perf_counter() - start)) / calls * 1e3

    def turn(self, number: int) -> None:
        """Measures each mode once. In every other turn the modes run in the opposite order."""
        for mode in list(self.times)[:: 1 if number % 2 else -1]:
            self.times[mode].append(self.run(mode))


def _train(world: World, program: Program, turns: int) -> dict[str, Any]:
    """Measures the steps of a program, and its collectives alone; returns the row of results."""
    on_cpus = jax.default_backend() == "cpu"
    pools = (OURS,) if on_cpus else (OURS, IN_PLACE)
    steps = _Turns(world, program, (OWN, *pools, *((WAITING,) if on_cpus else ()), NOTHING))
    before = jax_cxl.stats()
    steps.run(OURS)
    after = jax_cxl.stats()
    published = (after.bytes_published - before.bytes_published) // program.calls
    retrieved = (after.bytes_retrieved - before.bytes_retrieved) // program.calls
    alone = _Turns(world, _communication(program, before, after), (OWN, OURS))
    for turn in range(turns):
        steps.turn(turn)
        alone.turn(turn)
    losses = {mode: np.asarray(jax.tree.leaves(steps.first_losses[mode])) for mode in (OWN, *pools)}
    step, nothing = steps.times, steps.times[NOTHING]
    return {
        "measurement": "step",
        "program": program.name,
        "ranks": world.size,
        "turns": turns,
        "steps_in_a_turn": program.calls,
        **{f"{mode}_ms": _spread(times) for mode, times in step.items()},
        **{f"{mode}_collectives_alone_ms": _spread(times) for mode, times in alone.times.items()},
        "speedup": _ratios(step[OWN], step[OURS]),
        **({} if on_cpus else {"speedup_in_place": _ratios(step[OWN], step[IN_PLACE])}),
        "speedup_without_communication": _ratios(step[OWN], nothing),
        **({"jax_cxl_over_waiting": _ratios(step[OURS], step[WAITING])} if on_cpus else {}),
        "jax_cxl_over_nothing": _ratios(step[OURS], nothing),
        **{
            f"{mode}_hidden": round(
                1
                - max(statistics.median(step[mode]) - statistics.median(nothing), 0.0)
                / statistics.median(alone.times[OURS if mode in pools else mode]),
                4,
            )
            for mode in (OWN, *pools)
        },
        "bytes_written_and_read": [published, retrieved],
        "largest_relative_loss_difference": float(
            max(np.max(np.abs(losses[mode] / losses[OWN] - 1)) for mode in pools)
        ),
    }


def _communication(program: Program, before: Any, after: Any) -> Program:
    """Returns a program with only the collectives of one step of `program`.

    Args:
      program: the program.
      before: jax_cxl.stats() before the program made `program.calls` steps through the pool.
      after: jax_cxl.stats() after these steps.
    """
    of = {}
    for name, counted in after.operations.items():
        old = before.operations.get(name)
        calls = (counted.calls - (old.calls if old else 0)) // program.calls
        if calls:
            of[name] = calls, (counted.bytes - (old.bytes if old else 0)) // program.calls
    return programs.communication(program.name, of)


def _compile(world: World, program: Program, turns: int) -> dict[str, Any]:
    """Measures the compilation of a program, with the hook and without; returns the row."""
    times: dict[str, list[float]] = {mode: [] for mode in (OWN, OURS)}
    processor: dict[str, list[float]] = {mode: [] for mode in (OWN, OURS)}
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
            for mode in (OWN, OURS) if turn % 2 else (OWN, OURS)[::-1]:
                with modes.compiling(mode):
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
        **{f"{mode}_ms": _spread(times[mode]) for mode in (OWN, OURS)},
        "longer": _ratios(times[OURS], times[OWN]),
        **{f"{mode}_processor_ms": _spread(processor[mode]) for mode in (OWN, OURS)},
        "longer_on_the_processor": _ratios(processor[OURS], processor[OWN]),
        "module_bytes": len(modules[-1]),
        "hook_ms": _spread(hooks[1:]),
    }


def _spread(values: list[float]) -> dict[str, float]:
    quartiles = statistics.quantiles(values, n=4) if len(values) > 1 else [values[0]] * 3
    names = "min", "quarter", "median", "three_quarters", "max"
    found = min(values), *quartiles, max(values)
    return {name: round(value, 4) for name, value in zip(names, found, strict=True)}


def _ratios(ones: list[float], others: list[float]) -> dict[str, float]:
    """Divides the times `ones` by the times `others`, turn by turn; returns the ratios' spread."""
    return _spread([one / other for one, other in zip(ones, others, strict=True)])


def _sentence(row: dict[str, Any]) -> str:
    own, ours = (row[f"{mode}_ms"]["median"] for mode in (OWN, OURS))
    text = f"{row['measurement']} of {row['program']}: {OWN} {own:.2f} ms, {OURS} {ours:.2f} ms"
    if row["measurement"] == "step":
        ratio, alone = row["speedup"], row[f"{OURS}_collectives_alone_ms"]["median"]
        more = (
            f"without communication {row[f'{NOTHING}_ms']['median']:.2f} ms, collectives alone"
            f" {alone:.2f} ms, hidden {row[f'{OURS}_hidden']:.2f}"
        )
        if f"{WAITING}_ms" in row:
            more += f", only waiting {row[f'{WAITING}_ms']['median']:.2f} ms"
        if f"{IN_PLACE}_ms" in row:
            more += f", without early starts {row[f'{IN_PLACE}_ms']['median']:.2f} ms"
    else:
        ratio = row["longer"]
        more = f"hook {row['hook_ms']['median']:.3f} ms of {row['module_bytes']:,} bytes"
    return f"{text}, x {ratio['median']:.3f} ({ratio['min']:.3f} to {ratio['max']:.3f}), {more}"


if __name__ == "__main__":
    main()
