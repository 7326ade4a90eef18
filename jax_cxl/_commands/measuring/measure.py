"""The measurement. Backends take turns, so that a slow machine affects all of them equally."""

import argparse
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

import jax_cxl
from jax_cxl._commands.measuring.backends import JaxBuffers, JaxRunner, calls_on_gpu, runner_of
from jax_cxl._commands.measuring.ops import OPS, Shape
from jax_cxl._commands.measuring.world import World

_SAMPLE_SECONDS = 0.01
_MAX_CALLS = 1000


def spread(microseconds: Sequence[float]) -> dict[str, float]:
    """Returns minimum, median and maximum, in the form of results files."""
    found = min(microseconds), statistics.median(microseconds), max(microseconds)
    return dict(zip(("min", "median", "max"), (round(time, 3) for time in found), strict=True))


def measure(
    world: World, names: Sequence[str], options: argparse.Namespace
) -> Iterator[tuple[Shape, dict[str, Any]]]:
    """Measures the backends in `names`; yields the rows of the results file on all ranks."""
    ops, dtype = [OPS[name] for name in options.ops], np.dtype(options.dtype)
    cases = [(op, size) for op in ops for size in (options.sizes if op.sized else [0])]
    for i, (op, size) in enumerate(cases, 1):
        # Whole blocks, of at least one element.
        count = max(1, size // (op.blocks(world.size) * dtype.itemsize))
        shape = Shape(op, world.size, world.rank, count, dtype)
        if world.rank == 0:
            print(f"bench: {i}/{len(cases)} {shape}", file=sys.stderr, end="\r")
        for row in _measure_shape(world, names, shape, options):
            yield shape, row


def _measure_shape(
    world: World, names: Sequence[str], shape: Shape, options: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    buffers = JaxBuffers(shape)
    fixed = None if options.platform == "cpu" else options.calls or calls_on_gpu(shape.bytes)
    found = {name: runner_of(name, buffers, fixed) for name in names}
    runners = {name: runner for name, runner in found.items() if runner}
    buffers.allocate()
    expected = shape.expected()
    wrong = {name: _count_wrong(world, expected, runner) for name, runner in runners.items()}
    calls = {
        name: runner.calls or options.calls or enough(world, runner)
        for name, runner in runners.items()
    }
    times: dict[str, list[float]] = {name: [] for name in runners}
    for _ in range(options.repeats):
        for name, runner in runners.items():
            times[name].append(sample(world, runner, calls[name]) * 1e6)
    for name, runner in runners.items():
        median = statistics.median(times[name])
        rate = shape.bytes / median / 1e3
        row = {
            "backend": name,
            "op": shape.op.name,
            "bytes": shape.bytes,
            "dtype": shape.dtype.name,
            "ranks": shape.ranks,
            "time_us": spread(times[name]),
            "algbw_gbps": round(rate, 6),
            "busbw_gbps": round(rate * shape.op.bus_factor(shape.ranks), 6),
        }
        written = {"bytes_written": _bytes_written(world, runner)} if name == "jax_cxl" else {}
        yield row | {"wrong": wrong[name] + _count_wrong(world, expected, runner)} | written
    buffers.release()


def sample(world: World, runner: Any, calls: int) -> float:
    """Returns the seconds of one call on the slowest rank. `runner` is like a `JaxRunner`."""
    world.barrier()
    start = time.perf_counter()
    runner.run(calls)
    return max(world.gather(time.perf_counter() - start)) / calls


def enough(world: World, runner: Any) -> int:
    """Returns how many calls of `runner` a sample needs to be long enough, equal on all ranks."""
    sample(world, runner, 1)
    calls = 1
    while calls < _MAX_CALLS:
        seconds = sample(world, runner, calls)
        if seconds * calls >= _SAMPLE_SECONDS:
            break
        # The time of a single call is mostly dispatch, and tells little about the time of many
        # calls. So increase the number of calls in steps.
        calls = min(8 * calls, max(2 * calls, int(_SAMPLE_SECONDS / seconds)), _MAX_CALLS)
    return calls


def _bytes_written(world: World, runner: JaxRunner) -> int:
    """Returns the bytes that a call writes to the pool, on the rank that writes the most."""
    before = jax_cxl.stats().bytes_published
    calls = runner.calls or 1
    runner.run(calls)
    return int(max(world.gather(jax_cxl.stats().bytes_published - before))) // calls


def _count_wrong(world: World, expected: np.ndarray | None, runner: JaxRunner) -> int:
    """Overwrites the output, runs the collective, and returns how many elements are wrong."""
    runner.clear()
    world.barrier()
    runner.run(1)
    differ = 0
    if expected is not None:
        bits = np.dtype(f"u{expected.dtype.itemsize}")
        differ = int(np.count_nonzero(runner.output().view(bits) != expected.view(bits)))
    return int(sum(world.gather(differ)))
