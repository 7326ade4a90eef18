"""Backends, which execute collectives: jax_cxl, and JAX over Gloo or NCCL."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_cxl
from jax_cxl._commands.measuring.ops import UNWRITTEN, Shape

_AXIS = "i"


class JaxBuffers:
    """The input x and the output y. All runners of JAX use them in turn.

    Each program takes both by donation and returns them, so that no program allocates memory. The
    first use of fresh memory costs more than a collective.
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
        x = jax.make_array_from_process_local_data(
            self.types[0].sharding, self.shape.input(), self.types[0].shape
        )
        # Copy into memory that XLA owns: NumPy's memory cannot be donated.
        self.x = jax.jit(jnp.copy)(x).block_until_ready()
        self.spoil()

    def release(self) -> None:
        self.x = self.y = None

    def spoil(self) -> None:
        """Makes every element of y wrong."""
        y = self.types[1]
        fill = jax.jit(lambda: jnp.full(y.shape, UNWRITTEN, y.dtype), out_shardings=y.sharding)
        self.y = fill().block_until_ready()


Operation = Callable[[Any], Any]  # It takes and returns a rank's value.


class JaxRunner:
    """A jitted program that loops over the collective.

    Each call's input depends on the output of the previous call, through one element that keeps its
    value, so that no compiler drops, merges or overlaps calls.

    Attributes:
      calls: number of calls of each run if it is fixed; None if `run` can execute any number. GPUs
        need a fixed number: in a loop with a variable bound they ask the host in each iteration
        whether to continue.
    """

    def __init__(self, operation: Operation, buffers: JaxBuffers, calls: int | None = None):
        self._buffers = buffers
        self.calls = calls

        def body(x, y, calls):
            def once(_, carry):
                x, _ = carry
                y = operation(x)
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
        """Executes the collective `calls` times, one after the other, and waits for the end."""
        buffers = self._buffers
        buffers.x, buffers.y = self._program(buffers.x, buffers.y, np.int32(calls))
        jax.block_until_ready(buffers.y)

    def clear(self) -> None:
        """Makes every element of the output wrong."""
        self._buffers.spoil()

    def output(self) -> np.ndarray:
        """Returns this rank's output of the last call."""
        return np.asarray(self._buffers.y.addressable_shards[0].data)


# The operations that `jax.lax` has on all platforms. It also has functions with the names of other
# operations, but these are not collectives, or do not run everywhere.
_OF_LAX = ("all_gather", "psum", "psum_scatter", "all_to_all", "ppermute")


def _operation(backend: str, shape: Shape) -> Operation | None:
    """Returns the operation of `shape`, or None if `backend` lacks it."""
    name, ours = shape.op.name, backend == "jax_cxl"
    if backend == "nccl":
        if name == "broadcast":
            return lambda x: jax.lax.pbroadcast(x, _AXIS, 0)
        if name == "scatter":
            # JAX has no scatter. In an all-to-all, the first block that arrives comes from rank 0,
            # the root, and is the result.
            return lambda x: jax.lax.all_to_all(x, _AXIS, 0, 0, tiled=True)[: shape.count]
        # JAX has no reduce and no gather. Users would write psum and all_gather instead, which move
        # more data than necessary.
        name = {"reduce": "psum", "gather": "all_gather"}.get(name, name)
    if not ours and name not in _OF_LAX:
        return None
    tiled = ("all_gather", "psum_scatter", "all_to_all", "gather", "scatter")
    options: dict[str, Any] = {"tiled": True} if name in tiled else {}
    if name == "all_to_all":
        options |= {"split_axis": 0, "concat_axis": 0}
    if name == "ppermute":
        options["perm"] = [(rank, (rank + 1) % shape.ranks) for rank in range(shape.ranks)]
    function = getattr(jax_cxl if ours else jax.lax, name)
    return functools.partial(function, axis_name=_AXIS, **options)


def runner_of(name: str, buffers: JaxBuffers, calls: int | None = None) -> JaxRunner | None:
    """Returns a runner of the operation of `buffers`, or None if the backend does not have it."""
    operation = _operation(name, buffers.shape)
    return JaxRunner(operation, buffers, calls) if operation else None


def calls_on_gpu(size: int) -> int:
    """Returns how many calls of `size` bytes make the program's own time, 1.2 ms, negligible."""
    steps = ((64 << 10, 1000), (1 << 20, 500), (16 << 20, 200), (128 << 20, 60))
    return next((more for largest, more in steps if size <= largest), 24)
