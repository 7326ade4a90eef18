"""The measurement: backends take turns, so that what disturbs the machine disturbs them alike."""

import contextlib
import dataclasses
import statistics
import time
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from jax_cxl._bench import bound as bound_lib
from jax_cxl._bench.backends import Backend, JaxBuffers, Runner, Shape
from jax_cxl._bench.ops import OPS, Op
from jax_cxl._bench.sizes import format_size
from jax_cxl._bench.teams import Turns
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
    bound_us: float | None

    @property
    def algbw_gbps(self) -> float:
        return self.bytes / self.median_us / 1e3

    @property
    def busbw_gbps(self) -> float:
        return self.algbw_gbps * float(self.op.bus_factor(self.ranks))

    @property
    def bound_share(self) -> float | None:
        return None if self.bound_us is None else self.bound_us / self.median_us

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
            "bound_share": None if self.bound_share is None else round(self.bound_share, 6),
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
      copies: whether to measure the copy bound, that of CPUs.
      compile_first: whether to compile all programs before the first measurement, so that no team
        compiles while another measures.
    """

    ops: list[str]
    sizes: list[int]
    dtype: str
    repeats: int
    calls: int
    copies: bool
    compile_first: bool


def measure(
    world: World,
    backends: list[Backend],
    settings: Settings,
    turns: Turns,
    progress: Callable[[str], None],
) -> Iterator[Row]:
    """Yields the rows, on all ranks, as they are ready."""
    dtype = np.dtype(settings.dtype)
    cases: Iterable[Case] = (
        _prepare(world, backends, OPS[name], size, dtype)
        for name in settings.ops
        for size in settings.sizes
    )
    if settings.compile_first:
        cases = list(cases)
    total = len(settings.ops) * len(settings.sizes)
    for i, case in enumerate(cases):
        with turns.take() if world.rank == 0 else contextlib.nullcontext():
            world.barrier()
            shape = case.shape
            progress(f"{i + 1}/{total} {shape.op.name} {format_size(shape.bytes)}")
            yield from _measure_case(world, case, settings)
            world.barrier()


@dataclasses.dataclass(frozen=True)
class Case:
    """An operation and a size, and by whom it is run."""

    shape: Shape
    buffers: JaxBuffers
    runners: dict[str, Runner]


def _prepare(world: World, backends: list[Backend], op: Op, size: int, dtype: np.dtype) -> Case:
    count = max(1, size // (op.blocks(world.size) * dtype.itemsize))
    shape = Shape(op, world.size, world.rank, count, dtype)
    buffers = JaxBuffers(shape)
    found = {backend.name: backend.runner(buffers) for backend in backends}
    return Case(shape, buffers, {name: runner for name, runner in found.items() if runner})


def _measure_case(world: World, case: Case, settings: Settings) -> Iterator[Row]:
    shape, runners = case.shape, case.runners
    case.buffers.allocate()
    expected = shape.op.expected(shape.ranks, shape.rank, shape.count, shape.dtype)
    wrong = {name: _count_wrong(world, expected, runner) for name, runner in runners.items()}
    calls = {
        name: runner.calls or settings.calls or enough(world, runner)
        for name, runner in runners.items()
    }
    copies = bound_lib.CopyBound(world, shape.bytes) if settings.copies else None
    times: dict[str, list[float]] = {name: [] for name in runners}
    bounds = []
    for _ in range(settings.repeats):
        for name, runner in runners.items():
            times[name].append(sample(world, runner, calls[name]))
        if copies is not None:
            rates = copies.measure()
            bounds.append(bound_lib.bound_seconds(shape.op, shape.ranks, shape.block_bytes, rates))
    for name, runner in runners.items():
        wrong[name] += _count_wrong(world, expected, runner)
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
            bound_us=statistics.median(bounds) * 1e6 if bounds else None,
        )
    case.buffers.release()


def sample(world: World, runner: Runner, calls: int) -> float:
    """Returns the seconds of one call on the slowest rank."""
    world.barrier()
    start = time.perf_counter()
    runner.run(calls)
    return max(world.gather(time.perf_counter() - start)) / calls


def enough(world: World, runner: Runner) -> int:
    """Returns how many calls fill a sample; the same number on all ranks."""
    sample(world, runner, 1)
    calls = 1
    while calls < _MAX_CALLS:
        seconds = sample(world, runner, calls)
        if seconds * calls >= _SAMPLE_SECONDS:
            break
        # One call alone is mostly dispatch: approach the number in steps.
        calls = min(8 * calls, max(2 * calls, int(_SAMPLE_SECONDS / seconds)), _MAX_CALLS)
    return calls


def _count_wrong(world: World, expected: np.ndarray | None, runner: Runner) -> int:
    """Runs the collective into a spoilt output; returns how many elements differ in any bit."""
    runner.clear()
    world.barrier()
    runner.run(1)
    differ = 0
    if expected is not None:
        bits = np.dtype(f"u{expected.dtype.itemsize}")
        differ = int(np.count_nonzero(runner.output().view(bits) != expected.view(bits)))
    return int(sum(world.gather(differ)))
