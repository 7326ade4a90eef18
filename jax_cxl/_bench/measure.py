"""The measurement: backends take turns, so that what disturbs the machine disturbs them alike."""

import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator

import numpy as np

from jax_cxl._bench import bound as bound_lib
from jax_cxl._bench.backends import Backend, JaxBuffers, Runner, Shape
from jax_cxl._bench.ops import OPS, Op
from jax_cxl._bench.sizes import format_size
from jax_cxl._bench.world import World

_SAMPLE_SECONDS = 0.01
_MAX_CALLS = 1000


@dataclasses.dataclass(frozen=True)
class Row:
    """The result of one backend for one operation and size; times in microseconds."""

    backend: str
    op: Op
    ranks: int
    bytes: int
    count: int
    dtype: str
    min_us: float
    median_us: float
    max_us: float
    wrong: int
    bound_us: float

    @property
    def algbw_gbps(self) -> float:
        return self.bytes / self.median_us / 1e3

    @property
    def busbw_gbps(self) -> float:
        return self.algbw_gbps * float(self.op.bus_factor(self.ranks))

    @property
    def bound_share(self) -> float:
        return self.bound_us / self.median_us

    def as_json(self) -> dict:
        """The row as results files hold it."""
        return {
            "backend": self.backend,
            "op": self.op.name,
            "bytes": self.bytes,
            "dtype": self.dtype,
            "ranks": self.ranks,
            "time_us": {
                "min": round(self.min_us, 3),
                "median": round(self.median_us, 3),
                "max": round(self.max_us, 3),
            },
            "algbw_gbps": round(self.algbw_gbps, 6),
            "busbw_gbps": round(self.busbw_gbps, 6),
            "wrong": self.wrong,
            "bound_share": round(self.bound_share, 6),
        }


@dataclasses.dataclass(frozen=True)
class Settings:
    """What to measure.

    Attributes:
      ops: names of the operations.
      sizes: in bytes; each is rounded down to whole blocks, at least of one element.
      dtype: of the elements.
      repeats: samples of each backend.
      calls: collectives in a sample; 0 takes as many as fill 10 ms.
    """

    ops: list[str]
    sizes: list[int]
    dtype: str
    repeats: int
    calls: int


def measure(
    world: World,
    backends: list[Backend],
    settings: Settings,
    progress: Callable[[str], None],
) -> Iterator[Row]:
    """Yields the rows, on all ranks, as they are ready."""
    dtype = np.dtype(settings.dtype)
    cases = [(op, size) for op in settings.ops for size in settings.sizes]
    for i, (name, size) in enumerate(cases):
        op = OPS[name]
        count = max(1, size // (op.blocks(world.size) * dtype.itemsize))
        shape = Shape(op, world.size, world.rank, count, dtype)
        progress(f"{i + 1}/{len(cases)} {name} {format_size(shape.bytes)}")
        yield from _measure_shape(world, backends, shape, settings)


def _measure_shape(
    world: World,
    backends: list[Backend],
    shape: Shape,
    settings: Settings,
) -> Iterator[Row]:
    buffers = JaxBuffers(shape)
    runners: dict[str, Runner] = {}
    for backend in backends:
        runner = backend.runner(buffers)
        if runner is not None:
            runners[backend.name] = runner
    wrong = {name: _count_wrong(world, shape, runner) for name, runner in runners.items()}
    calls = {name: settings.calls or _enough(world, runner) for name, runner in runners.items()}
    copies = bound_lib.CopyBound(world, shape.bytes)
    times: dict[str, list[float]] = {name: [] for name in runners}
    bounds = []
    for _ in range(settings.repeats):
        for name, runner in runners.items():
            times[name].append(_sample(world, runner, calls[name]))
        bounds.append(
            bound_lib.bound_seconds(shape.op, shape.ranks, shape.block_bytes, copies.measure())
        )
    for name, runner in runners.items():
        wrong[name] += _count_wrong(world, shape, runner)
        yield Row(
            backend=name,
            op=shape.op,
            ranks=shape.ranks,
            bytes=shape.bytes,
            count=shape.count,
            dtype=settings.dtype,
            min_us=min(times[name]) * 1e6,
            median_us=statistics.median(times[name]) * 1e6,
            max_us=max(times[name]) * 1e6,
            wrong=wrong[name],
            bound_us=statistics.median(bounds) * 1e6,
        )


def _sample(world: World, runner: Runner, calls: int) -> float:
    """Returns the seconds of one call on the slowest rank."""
    world.barrier()
    start = time.perf_counter()
    runner.run(calls)
    return max(world.gather(time.perf_counter() - start)) / calls


def _enough(world: World, runner: Runner) -> int:
    """Returns how many calls fill a sample; the same number on all ranks."""
    _sample(world, runner, 1)
    calls = 1
    while calls < _MAX_CALLS:
        seconds = _sample(world, runner, calls)
        if seconds * calls >= _SAMPLE_SECONDS:
            break
        # One call alone is mostly dispatch: approach the number in steps.
        calls = min(8 * calls, max(2 * calls, int(_SAMPLE_SECONDS / seconds)), _MAX_CALLS)
    return calls


def _count_wrong(world: World, shape: Shape, runner: Runner) -> int:
    """Runs the collective into a spoilt output; returns how many elements differ in any bit."""
    expected = shape.op.expected(shape.ranks, shape.rank, shape.count, shape.dtype)
    runner.clear()
    world.barrier()
    runner.run(1)
    bits = np.dtype(f"u{shape.dtype.itemsize}")
    differ = 0
    if expected is not None:
        differ = int(np.count_nonzero(runner.output().view(bits) != expected.view(bits)))
    return int(sum(world.gather(differ)))
