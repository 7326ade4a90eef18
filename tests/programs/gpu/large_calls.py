"""Checks large collectives, blocking and started, whose operands every rank can compute.

Prints one JSON object: the number of wrong elements of each operation, over all ranks. Ends with
status 1 if any element is wrong.
"""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags

import jax_cxl

_MIB = flags.DEFINE_integer("mib", 256, "Size of the larger buffer of a rank.")
_TURNS = flags.DEFINE_integer("turns", 3, "Calls of each operation, with other operands each time.")


def value(rank, index, turn):
    """Returns the value of element `index` of the operand of `rank`."""
    return index * jnp.uint32(2654435761) + (rank * 97 + turn).astype(jnp.uint32)


def operations(ranks, count):
    """Yields (name, operand's size, function of operand, expected(rank, turn))."""
    whole, part = jnp.arange(count, dtype=jnp.uint32), jnp.arange(count // ranks, dtype=jnp.uint32)
    everyone = range(ranks)

    def mine(rank):
        return part + (rank * len(part)).astype(jnp.uint32)

    def gathered(rank, turn):
        return jnp.concatenate([value(jnp.int32(r), part, turn) for r in everyone])

    def summed(index):
        return lambda rank, turn: sum(value(jnp.int32(r), index(rank), turn) for r in everyone)

    def exchanged(rank, turn):
        return jnp.concatenate([value(jnp.int32(r), mine(rank), turn) for r in everyone])

    def of_root(index):
        return lambda rank, turn: value(jnp.int32(1), index(rank), turn)

    def all_of_it(rank):
        return whole

    yield (
        *("all_gather", len(part)),
        *(lambda x: jax_cxl.all_gather(x, "i", tiled=True), gathered),
    )
    yield (
        *("all_gather, started", len(part)),
        *(lambda x: jax_cxl.start(jax_cxl.all_gather, x, "i", tiled=True).done(), gathered),
    )
    yield "psum", count, lambda x: jax_cxl.psum(x, "i"), summed(all_of_it)
    yield (
        *("psum, started", count),
        *(lambda x: jax_cxl.start(jax_cxl.psum, x, "i").done(), summed(all_of_it)),
    )
    yield (
        *("psum_scatter", count),
        *(lambda x: jax_cxl.psum_scatter(x, "i", tiled=True), summed(mine)),
    )
    yield (
        *("all_to_all", count),
        *(lambda x: jax_cxl.all_to_all(x, "i", 0, 0, tiled=True), exchanged),
    )
    yield "broadcast", count, lambda x: jax_cxl.broadcast(x, "i", root=1), of_root(all_of_it)
    yield (
        *("scatter", count),
        *(lambda x: jax_cxl.scatter(x, "i", root=1, tiled=True), of_root(mine)),
    )
    # gather and reduce define only the result of the root, rank 0. `check` ignores other results.
    yield (
        *("gather", len(part)),
        *(lambda x: jax_cxl.gather(x, "i", root=0, tiled=True), gathered),
    )
    yield "reduce", count, lambda x: jax_cxl.reduce(x, "i", root=0), summed(all_of_it)


def main(_) -> None:
    jax_cxl.initialize()
    ranks = jax.device_count()
    mesh = jax_cxl.make_mesh((ranks,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    wrong = {}
    for name, size, function, expected in operations(ranks, _MIB.value << 18):

        def check(turn, name=name, size=size, function=function, expected=expected):
            rank = jax.lax.axis_index("i")
            operand = value(rank, jnp.arange(size, dtype=jnp.uint32), turn[0])
            differ = jnp.sum(function(operand) != expected(rank, turn[0]))
            counts = (rank == 0) if name in ("gather", "reduce") else True
            return jnp.where(counts, differ, 0)[None]

        program = jax.jit(
            jax.shard_map(check, mesh=mesh, in_specs=jax.P(), out_specs=jax.P("i"), check_vma=False)
        )
        wrong[name] = 0
        for turn in range(_TURNS.value):
            found = program(jnp.array([turn], jnp.int32))
            wrong[name] += sum(int(np.sum(shard.data)) for shard in found.addressable_shards)
    print(json.dumps(wrong))
    sys.exit(any(wrong.values()))


if __name__ == "__main__":
    app.run(main)
