"""Checks collectives of arrays far larger than the pool, byte by byte.

    python -m jax_cxl.launch -n 2 benchmarks/collectives/large_arrays.py --gigabytes=4.5

By default every array has more than 2**32 bytes, so that a size or an offset of 32 bits fails. The
pool has 64 MiB. With two ranks the script needs memory for four arrays.
"""

import time

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags
from jax import lax
from jax.sharding import AxisType

import jax_cxl

_GIGABYTES = flags.DEFINE_float("gigabytes", 4.5, "Size of one rank's array, in GiB.")
_OPERATIONS = flags.DEFINE_list(
    "operations", ["psum", "broadcast", "ppermute"], "Operations to check."
)

_COLUMNS = 1 << 20
_PERIOD = 251  # A prime, so that chunks of a power of two bytes differ.


def pattern(row, column, rank):
    """Returns the byte at (row, column) in a rank's array. Takes NumPy or JAX arrays."""
    return (row * 7 + column) % _PERIOD + rank


def main(_):
    jax_cxl.initialize("shm:?size=64MiB")
    ranks = jax.device_count()
    rows = int(_GIGABYTES.value * 2**30) // _COLUMNS
    mesh = jax_cxl.make_mesh((ranks,), ("i",), axis_types=(AxisType.Auto,))
    # For each name: the operation, and a function that maps a rank to the ranks whose arrays add up
    # to its result.
    operations = {
        "psum": (lambda v: jax_cxl.psum(v, "i"), lambda rank: range(ranks)),
        "broadcast": (
            lambda v: jax_cxl.broadcast(v, "i", root=ranks - 1),
            lambda rank: [ranks - 1],
        ),
        "ppermute": (
            lambda v: jax_cxl.ppermute(v, "i", [(r, (r + 1) % ranks) for r in range(ranks)]),
            lambda rank: [(rank - 1) % ranks],
        ),
    }

    def make():
        shape = (rows, _COLUMNS)
        row, column = (lax.broadcasted_iota(jnp.int32, shape, d) for d in (0, 1))
        return pattern(row, column, lax.axis_index("i")).astype(jnp.uint8)

    def program(function, *in_specs, **options):
        mapped = jax.shard_map(
            function, mesh=mesh, in_specs=in_specs, out_specs=jax.P("i"), check_vma=False
        )
        return jax.jit(mapped, **options)

    for name in _OPERATIONS.value:
        operation, sources = operations[name]
        x = jax.block_until_ready(program(make)())
        start = time.perf_counter()
        y = jax.block_until_ready(program(operation, jax.P("i"))(x))
        seconds = time.perf_counter() - start
        x.delete()
        # A process has one rank, so this loop runs once. After it, `del` drops all references to
        # the result, so that its memory is free for the next operation.
        for shard in y.addressable_shards:
            rank, got, wrong = (shard.index[0].start or 0) // rows, np.asarray(shard.data), 0
            for row in range(rows):
                want = sum(
                    pattern(row, np.arange(_COLUMNS, dtype=np.int32), source)
                    for source in sources(rank)
                )
                wrong += int(np.count_nonzero(got[row] != want.astype(np.uint8)))
            print(
                f"{name}: rank {rank}, {got.nbytes} bytes in {seconds:.1f} s, {wrong} wrong",
                flush=True,
            )
            if wrong:
                raise SystemExit(f"{name} is wrong")
        del shard, got, y


if __name__ == "__main__":
    app.run(main)
