"""Backends, which execute collectives: jax_cxl, JAX over Gloo or NCCL, and MPI.

A backend makes a `Runner` for an operation and a shape, or None if it does not have the operation.
All runners that use JAX share the same buffers.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

import jax_cxl
from jax_cxl._commands.bench import nccl, routed
from jax_cxl._commands.bench.ops import UNWRITTEN, Op, values

_AXIS = "i"


@dataclasses.dataclass(frozen=True)
class Shape:
    """A measured case: an operation on blocks of `count` elements."""

    op: Op
    ranks: int
    rank: int
    count: int
    dtype: Any

    @property
    def block_bytes(self) -> int:
        return self.count * self.dtype.itemsize

    @property
    def bytes(self) -> int:
        """Bytes of the larger of a rank's two buffers, as in nccl-tests."""
        return self.op.blocks(self.ranks) * self.block_bytes if self.op.sized else 0

    def input(self) -> np.ndarray:
        """Returns this rank's input."""
        count = self.op.blocks_in(self.ranks) * self.count
        return values(self.rank, 0, count).astype(self.dtype)

    def unwritten(self) -> np.ndarray:
        """Returns an output in which every element is wrong."""
        return np.full(self.op.blocks_out(self.ranks) * self.count, UNWRITTEN, self.dtype)


class Runner(Protocol):
    """One operation of one backend, ready to run.

    Attributes:
      calls: number of calls of each run if it is fixed; None if `run` can execute any number.
    """

    calls: int | None

    def run(self, calls: int) -> None:
        """Executes the collective `calls` times, one after the other, and waits for the end."""

    def clear(self) -> None:
        """Makes every element of the output wrong."""

    def output(self) -> np.ndarray:
        """Returns this rank's output of the last call."""


class JaxBuffers:
    """The input x and the output y, which all runners of JAX use in turn.

    Each program takes both by donation and returns them, so that no program allocates memory. The
    first use of fresh memory costs more than a collective.

    Attributes:
      types: types of x and y, for programs that are compiled before the memory is allocated.
    """

    def __init__(self, shape: Shape):
        self.shape = shape
        self.mesh = jax_cxl.make_mesh(
            (shape.ranks,), (_AXIS,), axis_types=(jax.sharding.AxisType.Auto,)
        )
        sharding = jax.NamedSharding(self.mesh, jax.P(_AXIS))
        blocks = shape.op.blocks_in(shape.ranks), shape.op.blocks_out(shape.ranks)
        self.types = [
            jax.ShapeDtypeStruct((shape.ranks * n * shape.count,), shape.dtype, sharding=sharding)
            for n in blocks
        ]
        self.x: Any = None
        self.y: Any = None

    def allocate(self) -> None:
        """Allocates x, and a y in which every element is wrong."""
        self.x = self.place(self.shape.input())
        self.spoil()

    def release(self) -> None:
        """Frees both."""
        self.x = self.y = None

    def spoil(self) -> None:
        """Makes every element of y wrong."""
        y = self.types[1]
        fill = jax.jit(lambda: jnp.full(y.shape, UNWRITTEN, y.dtype), out_shardings=y.sharding)
        self.y = fill().block_until_ready()

    def place(self, local: np.ndarray) -> Any:
        """Returns the global array of which this rank holds `local`."""
        sharding = jax.NamedSharding(self.mesh, jax.P(_AXIS))
        whole = (self.shape.ranks * len(local),)
        array = jax.make_array_from_process_local_data(sharding, local, whole)
        # Copy into memory that XLA owns: NumPy's memory cannot be donated.
        return jax.jit(jnp.copy)(array).block_until_ready()


# Returns an operation on a rank's value. The work to prepare it does not count as part of a call.
Prepare = Callable[[], Callable[[Any], Any]]


class JaxRunner:
    """A jitted program that loops over the collective.

    Each call's input depends on the output of the previous call, through one element that keeps its
    value, so that no compiler drops, merges or overlaps calls.
    """

    def __init__(self, prepare: Prepare, buffers: JaxBuffers, calls: int | None):
        self._buffers = buffers
        self.calls = calls

        def body(x, y, calls):
            collective = prepare()

            def once(_, carry):
                x, _ = carry
                y = collective(x)
                kept = x[:1]
                tied = jnp.maximum(jnp.minimum(y[:1], kept), kept)
                return jax.lax.dynamic_update_slice(x, tied, (0,)), y

            return jax.lax.fori_loop(0, self.calls or calls, once, (x, y))

        spec = jax.P(_AXIS)
        program = jax.shard_map(
            body,
            mesh=buffers.mesh,
            in_specs=(spec, spec, jax.P()),
            out_specs=(spec, spec),
            check_vma=False,
        )
        number = jax.ShapeDtypeStruct((), np.int32)
        self._program = (
            jax.jit(program, donate_argnums=(0, 1), keep_unused=True)
            .lower(*buffers.types, number)
            .compile()
        )

    def run(self, calls: int) -> None:
        buffers = self._buffers
        buffers.x, buffers.y = self._program(buffers.x, buffers.y, np.int32(calls))
        jax.block_until_ready(buffers.y)

    def clear(self) -> None:
        self._buffers.spoil()

    def output(self) -> np.ndarray:
        return np.asarray(self._buffers.y.addressable_shards[0].data)


def _ring(ranks: int) -> list[tuple[int, int]]:
    return [(rank, (rank + 1) % ranks) for rank in range(ranks)]


def _prepare(module: Any, shape: Shape) -> Prepare | None:
    """Returns a function that prepares a module's operation, None if there is none."""
    name, _, routing = shape.op.name.partition(":")
    # `jax.lax` has functions of these names that are not collectives, or do not run everywhere.
    missing = ("broadcast", "reduce", "gather", "scatter", "pscan", "barrier", *routed.NAMES)
    if module is jax.lax and name in missing:
        return None
    if name in routed.NAMES:
        way = routing or "uniform"
        return functools.partial(routed.prepare, name, way, shape.ranks, shape.count, _AXIS)
    arguments: dict[str, tuple[tuple, dict]] = {
        "all_gather": ((), {"tiled": True}),
        "psum_scatter": ((), {"tiled": True}),
        "all_to_all": ((0, 0), {"tiled": True}),
        "gather": ((), {"tiled": True}),
        "scatter": ((), {"tiled": True}),
        "ppermute": ((_ring(shape.ranks),), {}),
    }
    function = getattr(module, name)
    positional, named = arguments.get(name, ((), {}))
    return lambda: lambda x: function(x, _AXIS, *positional, **named)


class JaxBackend:
    """A collective inside JAX: of jax_cxl, or of `jax.lax` over Gloo or NCCL."""

    def __init__(
        self,
        name: str,
        prepare: Callable[[Shape], Prepare | None],
        calls: Callable[[int], int] | None = None,
    ):
        """Makes the backend.

        Args:
          name: name of the backend.
          prepare: returns the function that prepares the operation, or None if it does not exist.
          calls: function from the size in bytes to the number of calls of a program. GPUs need a
            fixed number: in a loop with a variable bound they ask the host in each iteration
            whether to continue. By default the number is an argument of the program.
        """
        self.name = name
        self._prepare = prepare
        self._calls = calls

    def runner(self, buffers: JaxBuffers) -> JaxRunner | None:
        """Returns the runner for a shape, or None if the operation does not exist."""
        prepare = self._prepare(buffers.shape)
        if prepare is None:
            return None
        calls = self._calls(buffers.shape.bytes) if self._calls else None
        return JaxRunner(prepare, buffers, calls)


class MpiRunner:
    """An operation of MPI. It has its own arrays, which hold the same values as JAX's."""

    calls: int | None = None

    def __init__(self, call: Callable[[], Any], shape: Shape, x: np.ndarray, y: np.ndarray):
        self._call, self._shape, self._x, self._y = call, shape, x, y

    def run(self, calls: int) -> None:
        for _ in range(calls):
            self._call()

    def clear(self) -> None:
        self._y[:] = self._shape.unwritten()

    def output(self) -> np.ndarray:
        # MPI broadcasts in place, and a barrier returns its operand.
        name = self._shape.op.name
        sends = name == "barrier" or (name == "broadcast" and self._shape.rank == 0)
        return self._x if sends else self._y


def _mpi_call(
    communicator: Any, shape: Shape, x: np.ndarray, y: np.ndarray
) -> Callable[[], Any] | None:
    next_rank, last_rank = (shape.rank + 1) % shape.ranks, (shape.rank - 1) % shape.ranks
    root = shape.rank == 0

    def broadcast() -> None:
        communicator.Bcast(x if root else y, root=0)

    calls: dict[str, Callable[[], Any]] = {
        "all_gather": lambda: communicator.Allgather(x, y),
        "psum": lambda: communicator.Allreduce(x, y),
        "psum_scatter": lambda: communicator.Reduce_scatter_block(x, y),
        "all_to_all": lambda: communicator.Alltoall(x, y),
        "broadcast": broadcast,
        "reduce": lambda: communicator.Reduce(x, y, root=0),
        "gather": lambda: communicator.Gather(x, y, root=0),
        "scatter": lambda: communicator.Scatter(x, y, root=0),
        "ppermute": lambda: communicator.Sendrecv(x, next_rank, recvbuf=y, source=last_rank),
        "pscan": lambda: communicator.Scan(x, y),
        "barrier": communicator.Barrier,
    }
    return calls.get(shape.op.name)


class MpiBackend:
    """The MPI library behind mpi4py, called from Python without JAX."""

    name = "mpi"

    def __init__(self) -> None:
        from mpi4py import MPI

        self._communicator = MPI.COMM_WORLD
        self.version = MPI.Get_library_version().splitlines()[0].rstrip("\0")

    def runner(self, buffers: JaxBuffers) -> Runner | None:
        x, y = buffers.shape.input(), buffers.shape.unwritten()
        call = _mpi_call(self._communicator, buffers.shape, x, y)
        return None if call is None else MpiRunner(call, buffers.shape, x, y)


Backend = JaxBackend | MpiBackend


def make(names: list[str], platform: str, calls: int) -> list[Backend]:
    """Returns the backends of these names.

    Args:
      names: jax_cxl and baselines.
      platform: "cpu" or "cuda".
      calls: collectives in a sample; 0 for a number that fills it.
    """

    def backend(name: str) -> Backend:
        if name == "mpi":
            return MpiBackend()
        fixed = functools.partial(_calls_on_gpu, name)
        number = None if platform == "cpu" else (lambda size: calls or fixed(size))
        if name.startswith("nccl-"):
            return JaxBackend(name, lambda s: nccl.prepare(s.op.name, s.ranks, _AXIS), number)
        module = jax_cxl if name == "jax_cxl" else jax.lax
        return JaxBackend(name, functools.partial(_prepare, module), number)

    return [backend(name) for name in names]


def _calls_on_gpu(name: str, size: int) -> int:
    """Returns enough calls to make the 1.2 ms overhead of a program on two GPUs negligible."""
    calls = 24
    for largest, more in ((64 << 10, 1000), (1 << 20, 500), (16 << 20, 200), (128 << 20, 60)):
        if size <= largest:
            calls = more
            break
    # Each takes ten times as long.
    return calls // 8 if name == "nccl-socket" else calls
