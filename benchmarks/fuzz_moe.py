"""Random mixtures of experts through the pool, against NumPy.

    python -m jax_cxl.launch -n 2 --devices-per-process 2 benchmarks/fuzz_moe.py --count 200

Each seed names sizes and several random routings of one program: uniform, to one expert, to experts
of few ranks, with choices of no expert, with the same expert twice; with capacity, `max_rows` or
neither; float32, bfloat16 or float8 with scales. Rows, counts, dropped assignments and weighted
sums have to be right in every bit, and so do the gradients of whole numbers. A seed means another
program on other numbers of devices. The exit status is 1 if a result was wrong.
"""

import argparse
import json
import pathlib
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

import jax_cxl

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "tests" / "moe"))
import oracle

_ROUTINGS = 4  # of one program, because compilation takes most of the time.


def main() -> int:
    """Runs the programs; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--first", type=int, default=0, help="first seed (default: 0)")
    parser.add_argument("--count", type=int, default=100, help="how many seeds (default: 100)")
    parser.add_argument("--break", dest="spoil", action="store_true", help="negative control")
    options = parser.parse_args()
    # Most of the time goes into compiling.
    jax.config.update("jax_disable_most_optimizations", True)
    jax_cxl.initialize()
    start = time.perf_counter()
    wrong = []
    for seed in range(options.first, options.first + options.count):
        mistakes = _check(seed, options.spoil)
        if mistakes:
            wrong.append(seed)
            print(f"seed {seed}: {mistakes}", flush=True)
    print(
        json.dumps(
            {
                "cases": options.count * _ROUTINGS,
                "devices": jax.device_count(),
                "wrong_seeds": wrong,
                "seconds": round(time.perf_counter() - start, 1),
            }
        ),
        flush=True,
    )
    return int(bool(wrong))


def _experts(rng: np.random.Generator, ranks: int, tokens: int, k: int, experts: int) -> Any:
    """Returns random choices, (ranks, tokens, k), int32."""
    shape = (ranks, tokens, k)
    kind = rng.integers(0, 6)
    found = rng.integers(0, experts, shape)
    if kind == 1:
        found[:] = rng.integers(0, experts)
    elif kind == 2:
        some = rng.integers(0, experts, 2)
        found = rng.choice(some, shape)
    elif kind == 3:
        found = np.where(rng.random(shape) < 0.4, rng.choice([-1, experts, -7]), found)
    elif kind == 4:
        found[rng.integers(0, ranks)] = -1
    elif kind == 5:
        found[..., -1] = found[..., 0]
    return found.astype(np.int32)


def _check(seed: int, spoil: bool) -> list[str]:
    """Runs the program of a seed; returns the names of the results that are wrong."""
    rng = np.random.default_rng(seed)
    ranks = jax.device_count()
    per_rank, k = int(rng.integers(1, 5)), int(rng.integers(1, 5))
    tokens, width = int(rng.integers(1, 40)), 4 * int(rng.integers(1, 40))
    experts = per_rank * ranks
    dtype = (np.float32, ml_dtypes.bfloat16)[rng.integers(0, 2)]
    limit: dict[str, int] = {}
    mean = max(1, tokens * k // per_rank)
    draw = rng.integers(0, 3)
    if draw:
        limit = {("capacity", "max_rows")[draw - 1]: int(rng.integers(1, 2 * mean + 2))}
    block = int(rng.choice([0, 0, 4, width]))
    sent = {"float8_block": block} if block else {}

    def layer(x, chosen, weights, target):
        rows, handle = jax_cxl.moe_dispatch(x, chosen, "i", num_experts=experts, **limit, **sent)
        flat = rows.reshape(-1, width)

        def value(x, weights):
            again, way = jax_cxl.moe_dispatch(x, chosen, "i", num_experts=experts, **limit)
            z = jax_cxl.moe_combine(again, weights, way)
            return jnp.sum(z.astype(np.float32) * target), z

        gradients, z = jax.grad(value, argnums=(0, 1), has_aux=True)(x, weights)
        return flat, handle.group_sizes, handle.dropped[None], z, *gradients

    def several(*arguments):
        return jax.lax.map(lambda a: layer(*a), arguments)

    # The values of each rank lie along the second dimension.
    split = jax.P(None, "i")
    mesh = jax_cxl.make_mesh((ranks,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    program = jax.jit(
        jax.shard_map(several, mesh=mesh, in_specs=split, out_specs=split, check_vma=False)
    )
    x = rng.integers(0, 4, (_ROUTINGS, ranks, tokens, width)).astype(dtype)
    chosen = np.stack([_experts(rng, ranks, tokens, k, experts) for _ in range(_ROUTINGS)])
    weights = np.exp2(rng.integers(-1, 2, chosen.shape)).astype(np.float32)
    target = rng.integers(0, 2, x.shape).astype(np.float32)
    arguments = [_put(mesh, a) for a in (x, chosen, weights, target)]
    results = program(*arguments)
    expected = [
        _expected(*a, experts, limit, block) for a in zip(x, chosen, weights, target, strict=True)
    ]
    if spoil:
        expected[0][3][-1, -1, -1] += 1
    names = ("rows", "group sizes", "dropped", "sums", "gradients of x", "gradients of weights")
    return [
        name
        for i, (name, result) in enumerate(zip(names, results, strict=True))
        if not _equal(result, np.stack([e[i] for e in expected]))
    ]


def _put(mesh: Any, a: np.ndarray) -> Any:
    """Spreads (routings, ranks, tokens, ...) over the ranks."""
    a = a.reshape(len(a), -1, *a.shape[3:])
    sharding = jax.NamedSharding(mesh, jax.P(None, "i"))
    return jax.make_array_from_callback(a.shape, sharding, lambda index: a[index])


def _equal(result: Any, expected: np.ndarray) -> bool:
    """Whether the parts on this process are right in every bit; zeros may have either sign."""
    expected = expected.reshape(result.shape)
    return all(
        np.array_equal(np.asarray(shard.data), expected[shard.index])
        for shard in result.addressable_shards
    )


def _expected(x, chosen, weights, target, experts, limit, block) -> list[np.ndarray]:
    """Returns what NumPy computes of all ranks."""
    routed = oracle.route(chosen, experts, **limit)
    rows = oracle.dispatch(x, routed)
    z = oracle.combine(rows, weights, routed)
    kept = routed.row >= 0
    arrived = oracle.dispatch(target.astype(x.dtype), routed)
    per_row = np.zeros(rows.shape[:2], np.float32)
    per_row[routed.rank[kept], routed.row[kept]] = weights[kept]
    to_rows = (per_row[..., None] * arrived.astype(np.float32)).astype(x.dtype)
    to_x = oracle.combine(to_rows, np.ones_like(weights), routed)
    products = np.einsum("rtd,rtd->rt", x.astype(np.float32), target)
    to_weights = np.where(kept, products[..., None], 0).astype(np.float32)
    seen = oracle.dispatch(oracle.float8(x, block), routed) if block else rows
    return [seen, routed.sizes, routed.dropped, z, to_x, to_weights]


if __name__ == "__main__":
    sys.exit(main())
