"""Runs many independent collectives, which every rank starts in an order of its own.

One program contains 24 independent collectives of unequal sizes. It also calls a jitted inner
function with a collective 8 times, on independent values of one shape. A loop delays each
collective. The loop's length differs from rank to rank, from call to call and from run to run, so
that two ranks hardly ever start the collectives in the same order. All results are compared bitwise
with NumPy.

Runs under `python -m jax_cxl.launch` with any number of processes and devices.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags
from jax import lax

import jax_cxl

_RUNS = flags.DEFINE_integer("runs", 100, "How often the program runs.")
_SEED = flags.DEFINE_integer("seed", 0, "Seed of the values and of the delays.")
_SPINS = flags.DEFINE_integer("spins", 100_000, "Length of the longest delaying loop.")

_INDEPENDENT = 24
_INNER_CALLS = 8
_INNER_SIZE = 37


def _delayed(x, spins):
    """Returns x after `spins` iterations of a loop that XLA cannot drop."""
    turned = lax.fori_loop(0, spins, lambda i, y: y + 1, spins)
    # This adds exactly 0, because `turned` is finite.
    return x + (0 * turned).astype(x.dtype)


def _size(k: int) -> int:
    """Returns the number of elements of collective k.

    Most collectives exceed 512 bytes, and one exceeds several slots.
    """
    return 5 + 331 * k if k < _INDEPENDENT - 1 else 400_003


def _program(ranks: int):
    @jax.jit
    def inner(x):
        return jax_cxl.psum(3 * x, "ranks")

    def one(k, x):
        if k % 3 == 0:
            return jax_cxl.psum(x, "ranks")
        if k % 3 == 1:
            return jax_cxl.all_gather(x, "ranks")
        return jax_cxl.psum_scatter(jnp.tile(x, (ranks, 1)), "ranks")

    def program(xs, inner_xs, spins):
        outs = [one(k, _delayed(x[0], spins[0, k])) for k, x in enumerate(xs)]
        inner_outs = [
            inner(_delayed(x, spins[0, _INDEPENDENT + k])) for k, x in enumerate(inner_xs[0])
        ]
        return [out[None] for out in outs], jnp.stack(inner_outs)[None]

    return program


def _expected(k: int, x: np.ndarray) -> np.ndarray:
    return x if k % 3 == 1 else x.sum(0)


def _check(what: str, run: int, array: jax.Array, want: np.ndarray) -> None:
    for shard in array.addressable_shards:
        if not np.array_equal(np.asarray(shard.data)[0], want):
            sys.exit(f"run {run}: wrong value in {what} on {shard.device}")


def main(_) -> None:
    jax_cxl.initialize()
    devices = jax.devices()
    ranks = len(devices)
    mesh = jax_cxl.make_mesh((ranks,), ("ranks",), axis_types=(jax.sharding.AxisType.Auto,))
    sharding = jax.NamedSharding(mesh, jax.P("ranks"))
    program = jax.jit(
        jax.shard_map(_program(ranks), mesh=mesh, in_specs=jax.P("ranks"), out_specs=jax.P("ranks"))
    )

    def put(x):
        return jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])

    # All processes draw the same numbers, because they have the same seed.
    rng = np.random.default_rng(_SEED.value)
    for run in range(_RUNS.value):
        # Small integers: sums are exact in any order, so NumPy's is the one right answer.
        xs = [
            rng.integers(-99, 99, (ranks, _size(k))).astype(np.float32) for k in range(_INDEPENDENT)
        ]
        inner_xs = rng.integers(-99, 99, (ranks, _INNER_CALLS, _INNER_SIZE)).astype(np.float32)
        spins = rng.integers(0, _SPINS.value, (ranks, _INDEPENDENT + _INNER_CALLS), np.int32)
        outs, inner_out = program([put(x) for x in xs], put(inner_xs), put(spins))
        for k, (out, x) in enumerate(zip(outs, xs, strict=True)):
            _check(f"collective {k}", run, out, _expected(k, x))
        _check("the inner function", run, inner_out, 3 * inner_xs.sum(0))
    if jax.process_index() == 0:
        print(f"{_RUNS.value} runs right on {ranks} ranks: {jax_cxl.stats()}")


if __name__ == "__main__":
    app.run(main)
