"""Measures how much of a collective on GPUs runs beside matrix products of the same program.

Prints one JSON object with four times in milliseconds: of the products alone, of the collective
alone, of both one after the other, and of both with start, tie and done. The object also tells how
much of the shorter of the two was hidden behind the other. Ends with status 1 if a result differs
from that of the blocking collective.
"""

import json
import statistics
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags

import jax_cxl

_MIB = flags.DEFINE_integer("mib", 256, "Size of the gathered array.")
_WIDTH = flags.DEFINE_integer("width", 8192, "Of the square matrices.")
_PRODUCTS = flags.DEFINE_integer("products", 8, "Number of products.")
_REPEATS = flags.DEFINE_integer("repeats", 9, "Samples of each program.")


def products(a, h):
    for _ in range(_PRODUCTS.value):
        h = (h @ a) * jnp.asarray(1 / 64, h.dtype)
    return h


def gather(x):
    return jax_cxl.all_gather(x, "i", tiled=True)


def overlapped(x, a, h):
    future = jax_cxl.start(jax_cxl.all_gather, x, "i", tiled=True)
    h = products(a, future.tie(h))
    return future.done(after=h), h


def in_turn(x, a, h):
    y = gather(x)
    y, h = jax.lax.optimization_barrier((y, h))
    return y, products(a, h)


def main(_) -> None:
    jax_cxl.initialize()
    ranks = jax.device_count()
    mesh = jax_cxl.make_mesh((ranks,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    split = jax.NamedSharding(mesh, jax.P("i"))
    width = _WIDTH.value
    x = jax.jit(lambda: jnp.arange(_MIB.value << 18, dtype=np.float32), out_shardings=split)()

    def matrices(seed):
        def draw():
            return jax.random.normal(jax.random.key(seed), (ranks * width, width), jnp.bfloat16)

        return jax.jit(draw, out_shardings=split)()

    a, h = matrices(0), matrices(1)

    def program(function):
        return jax.jit(
            jax.shard_map(
                function, mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P("i"), check_vma=False
            )
        )

    programs = {
        "products_ms": (program(products), (a, h)),
        "collective_ms": (program(gather), (x,)),
        "in_turn_ms": (program(in_turn), (x, a, h)),
        "overlapped_ms": (program(overlapped), (x, a, h)),
    }
    times: dict[str, list[float]] = {name: [] for name in programs}
    results = {}
    for repeat in range(_REPEATS.value + 2):
        for name, (function, arguments) in programs.items():
            start = time.perf_counter()
            results[name] = jax.block_until_ready(function(*arguments))
            if repeat >= 2:  # After compiling, and once more.
                times[name].append((time.perf_counter() - start) * 1e3)
    figures = {name: round(statistics.median(samples), 3) for name, samples in times.items()}
    alone = figures["products_ms"], figures["collective_ms"]
    hidden = (sum(alone) - figures["overlapped_ms"]) / min(alone)
    same = all(
        np.array_equal(np.asarray(left.data), np.asarray(right.data))
        for one, other in zip(results["overlapped_ms"], results["in_turn_ms"], strict=True)
        for left, right in zip(one.addressable_shards, other.addressable_shards, strict=True)
    )
    if jax.process_index() == 0:
        spread = {name: [round(min(s), 3), round(max(s), 3)] for name, s in times.items()}
        print(
            json.dumps(figures | {"hidden": round(hidden, 3), "spread_ms": spread, "same": same}),
            flush=True,
        )
    sys.exit(0 if same else 1)


if __name__ == "__main__":
    app.run(main)
