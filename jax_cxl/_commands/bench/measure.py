"""The measurement. Backends take turns, so that a slow machine affects all of them equally."""

import contextlib
import dataclasses
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

import jax_cxl
from jax_cxl._commands.bench import bound as bound_lib, device_time
from jax_cxl._commands.bench.backends import Backend, JaxBuffers, Runner, Shape
from jax_cxl._commands.bench.ops import OPS, Op
from jax_cxl._commands.bench.teams import Turns
from jax_cxl._commands.bench.world import World
from jax_cxl._sizes import format_size

_SAMPLE_SECONDS = 0.01
_MAX_CALLS = 1000
# Larger messages are not traced: they take much longer than anything around them.
_MAX_TRACED_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True)
class Times:
    """Minimum, median and maximum of several times, in microseconds."""

    min: float
    median: float
    max: float

    @classmethod
    def of(cls, microseconds: Sequence[float]) -> "Times":
        return cls(min(microseconds), statistics.median(microseconds), max(microseconds))

    def as_json(self) -> dict:
        """Returns the times in the form of results files."""
        return {name: round(value, 3) for name, value in dataclasses.asdict(self).items()}


@dataclasses.dataclass(frozen=True)
class Row:
    """The result of one backend for one operation and size.

    Attributes:
      times: times of a call.
      wrong: number of wrong elements.
      bound_us: the copy bound, in microseconds.
      written: bytes written to the pool in a call by the rank that wrote the most; None for the
        collectives of other libraries.
    """

    backend: str
    op: Op
    ranks: int
    bytes: int
    count: int
    dtype: str
    times: Times
    wrong: int
    bound_us: float | None
    written: int | None

    @property
    def algbw_gbps(self) -> float:
        return self.bytes / self.times.median / 1e3

    @property
    def busbw_gbps(self) -> float:
        return self.algbw_gbps * float(self.op.bus_factor(self.ranks))

    @property
    def bound_share(self) -> float | None:
        return None if self.bound_us is None else self.bound_us / self.times.median

    def as_json(self) -> dict:
        """Returns the row in the form of results files."""
        return {
            "backend": self.backend,
            "op": self.op.name,
            "bytes": self.bytes,
            "dtype": self.dtype,
            "ranks": self.ranks,
            "time_us": self.times.as_json(),
            "algbw_gbps": round(self.algbw_gbps, 6),
            "busbw_gbps": round(self.busbw_gbps, 6),
            "wrong": self.wrong,
            **({} if self.written is None else {"bytes_written": self.written}),
            "bound_share": None if self.bound_share is None else round(self.bound_share, 6),
        }


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of a measurement.

    Attributes:
      ops: names of the operations.
      sizes: sizes in bytes. Each is rounded down to whole blocks of at least one element.
      dtype: dtype of the elements.
      repeats: number of samples of each backend.
      calls: collectives in a sample; 0 takes as many as fill 10 ms.
      warmup: collectives before the first sample.
      copies: whether to measure the copy bound (CPUs only).
      compile_first: whether to compile all programs before the first measurement, so that no team
        compiles while another measures.
    """

    ops: list[str]
    sizes: list[int]
    dtype: str
    repeats: int
    calls: int
    warmup: int
    copies: bool
    compile_first: bool

    def sizes_of(self, name: str) -> list[int]:
        """Returns the sizes of an operation."""
        return self.sizes if OPS[name].sized else [0]


@dataclasses.dataclass(frozen=True)
class Case:
    """An operation and a size, with the runners of the backends that have the operation."""

    shape: Shape
    buffers: JaxBuffers
    runners: dict[str, Runner]


def prepare(world: World, backends: list[Backend], settings: Settings) -> Iterable[Case]:
    """Returns the cases. Compiles each case when it is needed, or all cases before the first
    one."""
    dtype = np.dtype(settings.dtype)
    cases = (
        _prepare(world, backends, OPS[name], size, dtype)
        for name in settings.ops
        for size in settings.sizes_of(name)
    )
    return list(cases) if settings.compile_first else cases


def measure(
    world: World,
    cases: Iterable[Case],
    settings: Settings,
    turns: Turns,
    progress: Callable[[str], None],
) -> Iterator[Row]:
    """Measures the cases; yields the rows on all ranks."""
    total = sum(len(settings.sizes_of(name)) for name in settings.ops)
    for i, case in enumerate(cases):
        with _turn(world, turns):
            shape = case.shape
            progress(f"{i + 1}/{total} {shape.op.name} {format_size(shape.bytes)}")
            yield from _measure_case(world, case, settings)


def measure_on_device(
    world: World, cases: Iterable[Case], turns: Turns, progress: Callable[[str], None]
) -> Iterator[tuple[Shape, dict[str, Times]]]:
    """Yields the times of a call on the device, for each backend whose trace shows them.

    The kernels of a call wait for ranks that start later. So the time of a call is the shortest
    among the ranks that get data from others. Tracing slows a process down, so measure everything
    else first.
    """
    traced = [case for case in cases if case.shape.bytes <= _MAX_TRACED_BYTES]
    for i, case in enumerate(traced):
        with _turn(world, turns):
            shape = case.shape
            progress(f"{i + 1}/{len(traced)} {shape.op.name} {format_size(shape.bytes)}, traced")
            yield shape, _trace_case(world, case)


@contextlib.contextmanager
def _turn(world: World, turns: Turns) -> Iterator[None]:
    """Holds the turn of this process's team. All ranks of the team enter and leave together."""
    with turns.take() if world.rank == 0 else contextlib.nullcontext():
        world.barrier()
        yield
        world.barrier()


def _prepare(world: World, backends: list[Backend], op: Op, size: int, dtype: np.dtype) -> Case:
    count = op.rounded(max(1, size // (op.blocks(world.size) * dtype.itemsize)))
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
    for runner in runners.values() if settings.warmup else ():
        sample(world, runner, settings.warmup)
    copies = bound_lib.CopyBound(world, shape.bytes) if settings.copies else None
    times: dict[str, list[float]] = {name: [] for name in runners}
    bounds = []
    for _ in range(settings.repeats):
        for name, runner in runners.items():
            times[name].append(sample(world, runner, calls[name]))
        if copies is not None:
            rates = copies.measure()
            bounds.append(
                bound_lib.bound_seconds(
                    *(shape.op, shape.ranks, shape.count, shape.block_bytes, rates)
                )
            )
    for name, runner in runners.items():
        written = _bytes_written(world, runner) if name == "jax_cxl" else None
        wrong[name] += _count_wrong(world, expected, runner)
        yield Row(
            backend=name,
            op=shape.op,
            ranks=shape.ranks,
            bytes=shape.bytes,
            count=shape.count,
            dtype=settings.dtype,
            times=Times.of([seconds * 1e6 for seconds in times[name]]),
            wrong=wrong[name],
            bound_us=statistics.median(bounds) * 1e6 if bounds and shape.op.sized else None,
            written=written,
        )
    case.buffers.release()


def _trace_case(world: World, case: Case) -> dict[str, Times]:
    calls = {name: runner.calls or 1 for name, runner in case.runners.items()}

    def run() -> None:
        world.barrier()
        for name, runner in case.runners.items():
            runner.run(calls[name])

    case.buffers.allocate()
    try:
        events = device_time.trace(run)
    except device_time.NoDeviceTimeError as error:
        events = []
        _say(world, case, error)
    case.buffers.release()
    found = {}
    for name in case.runners:
        try:
            mine = device_time.of_calls(events, name, calls[name]) if events else []
        except device_time.NoDeviceTimeError as error:
            mine = []
            _say(world, case, error)
        if min(world.gather(len(mine))) < calls[name]:
            continue
        receives = case.shape.op.receives(world.size, world.rank)
        found[name] = Times.of([min(world.gather(t if receives else math.inf)) for t in mine])
    return found


def _say(world: World, case: Case, error: Exception) -> None:
    if world.rank == 0:
        size = format_size(case.shape.bytes)
        print(f"bench: no device time of {case.shape.op.name} {size}: {error}", file=sys.stderr)


def sample(world: World, runner: Runner, calls: int) -> float:
    """Returns the seconds of one call on the slowest rank."""
    world.barrier()
    start = time.perf_counter()
    runner.run(calls)
    return max(world.gather(time.perf_counter() - start)) / calls


def enough(world: World, runner: Runner) -> int:
    """Returns how many calls fill a sample. The number is the same on all ranks."""
    sample(world, runner, 1)
    calls = 1
    while calls < _MAX_CALLS:
        seconds = sample(world, runner, calls)
        if seconds * calls >= _SAMPLE_SECONDS:
            break
        # A single call is mostly dispatch, so approach the number in steps.
        calls = min(8 * calls, max(2 * calls, int(_SAMPLE_SECONDS / seconds)), _MAX_CALLS)
    return calls


def _bytes_written(world: World, runner: Runner) -> int:
    """Returns the bytes that a call writes to the pool, on the rank that writes the most."""
    before = jax_cxl.stats().bytes_published
    calls = runner.calls or 1
    runner.run(calls)
    return int(max(world.gather(jax_cxl.stats().bytes_published - before))) // calls


def _count_wrong(world: World, expected: np.ndarray | None, runner: Runner) -> int:
    """Overwrites the output, runs the collective, and returns how many elements are wrong."""
    runner.clear()
    world.barrier()
    runner.run(1)
    differ = 0
    if expected is not None:
        bits = np.dtype(f"u{expected.dtype.itemsize}")
        differ = int(np.count_nonzero(runner.output().view(bits) != expected.view(bits)))
    return int(sum(world.gather(differ)))
