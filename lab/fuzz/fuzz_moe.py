"""Random mixtures of experts through the pool, against NumPy.

    python -m jax_cxl.launch -n 2 --devices-per-process 2 -m lab.fuzz.fuzz_moe --cases 1000

A seed determines the sizes of one program, and a few hundred random routings. The program takes one
routing after another, because compilation takes most of the time. There are six kinds of routings:
uniform, to one expert, to two experts, with some choices of no expert, with a rank whose tokens all
choose no expert, and with tokens that choose the same expert twice. The number of rows is limited
by capacity, by `max_rows` or not at all. Rows are float32, bfloat16 or float8 with scales. An
expert multiplies each feature by a power of two.

Rows, sizes of groups, dropped assignments and weighted sums have to be right in every bit. Half of
the programs have tokens whose sums depend on the order of additions. The gradients with respect to
tokens, weights and experts are compared with those of a dense mixture, in which every expert sees
every token. They have to agree in every bit. If the order of additions matters, gradients of
weights and experts only have to agree up to rounding. The same seed gives another program on
another number of devices. The exit status is 1 if a result was wrong.
"""

import argparse
import dataclasses
import json
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

import jax_cxl
from tests.moe import oracle

_NAMES = (
    *("rows", "group sizes", "dropped", "sums"),
    *("gradients of tokens", "gradients of weights", "gradients of experts"),
)
# These gradients are sums of products of tokens, so rounding depends on the order of additions.
_ROUNDED = ("gradients of weights", "gradients of experts")


def main() -> int:
    """Runs the programs; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--first", type=int, default=0, help="first seed (default: 0)")
    parser.add_argument("--cases", type=int, default=1000, help="routings in all (default: 1000)")
    parser.add_argument("--routings", type=int, default=250, help="of a program (default: 250)")
    parser.add_argument("--break", dest="spoil", action="store_true", help="negative control")
    options = parser.parse_args()
    jax.config.update("jax_disable_most_optimizations", True)
    jax_cxl.initialize()
    start = time.perf_counter()
    seeds, wrong = range(options.first, options.first + -(-options.cases // options.routings)), []
    for seed in seeds:
        mistakes = _check(seed, options.routings, options.spoil)
        if mistakes:
            wrong.append(seed)
            print(f"seed {seed}: {mistakes}", flush=True)
    print(
        json.dumps(
            {
                "cases": len(seeds) * options.routings,
                "programs": len(seeds),
                "devices": jax.device_count(),
                "wrong_seeds": wrong,
                "seconds": round(time.perf_counter() - start, 1),
            }
        ),
        flush=True,
    )
    return int(bool(wrong))


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The sizes and limits of a program."""

    ranks: int
    tokens: int
    choices: int
    experts: int
    width: int
    dtype: Any
    limit: dict[str, int]  # of the rows, as moe_dispatch takes it
    block: int  # of float8, 0 without
    uneven: bool  # whether sums of tokens depend on the order

    @classmethod
    def draw(cls, rng: np.random.Generator) -> "Sizes":
        """Returns random sizes."""
        ranks, per_rank, k = jax.device_count(), int(rng.integers(1, 5)), int(rng.integers(1, 5))
        tokens, width = int(rng.integers(1, 28)), 4 * int(rng.integers(1, 20))
        mean = max(1, tokens * k // per_rank)
        name = (None, "capacity", "max_rows")[rng.integers(0, 3)]
        return cls(
            *(ranks, tokens, k, ranks * per_rank, width),
            dtype=(np.float32, ml_dtypes.bfloat16)[rng.integers(0, 2)],
            limit={name: int(rng.integers(1, 2 * mean + 2))} if name else {},
            block=int(rng.choice([0, 0, 4, width])),
            uneven=bool(rng.integers(0, 2)),
        )


def _choices(rng: np.random.Generator, sizes: Sizes) -> np.ndarray:
    """Returns a random routing: the experts that each token chooses, (ranks, tokens, k), int32."""
    experts, shape = sizes.experts, (sizes.ranks, sizes.tokens, sizes.choices)
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
        found[rng.integers(0, sizes.ranks)] = -1
    elif kind == 5:
        found[..., -1] = found[..., 0]
    return found.astype(np.int32)


def _program(sizes: Sizes, mesh: Any) -> Any:
    """Returns the jitted layer. It takes many routings at once, and runs them one after another."""
    sent = {"float8_block": sizes.block} if sizes.block else {}

    def dispatch(x, chosen, **sent):
        return jax_cxl.moe_dispatch(
            x, chosen, "i", num_experts=sizes.experts, **sizes.limit, **sent
        )

    def layer(x, chosen, weights, experts, target):
        def value(x, weights, experts):
            rows, handle = dispatch(x, chosen)
            if rows.ndim == 3:
                y = rows * experts[:, None]
            else:
                y = rows * jnp.repeat(
                    experts, handle.group_sizes, axis=0, total_repeat_length=len(rows)
                )
            z = jax_cxl.moe_combine(y.astype(x.dtype), weights, handle)
            return jnp.sum(z.astype(np.float32) * target), z

        gradients, z = jax.grad(value, argnums=(0, 1, 2), has_aux=True)(x, weights, experts)
        rows, handle = dispatch(x, chosen, **sent)
        flat = rows.reshape(-1, sizes.width)
        return flat, handle.group_sizes, handle.dropped[None], z, *gradients

    def several(*arguments):
        return jax.lax.map(lambda a: layer(*a), arguments)

    # The second dimension is divided among the ranks.
    split = jax.P(None, "i")
    return jax.jit(
        jax.shard_map(several, mesh=mesh, in_specs=split, out_specs=split, check_vma=False)
    )


def _check(seed: int, routings: int, spoil: bool) -> list[str]:
    """Runs the program of a seed; returns the names of the results that are wrong."""
    rng = np.random.default_rng(seed)
    sizes = Sizes.draw(rng)
    mesh = jax_cxl.make_mesh((sizes.ranks,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    shape = (routings, sizes.ranks, sizes.tokens, sizes.width)
    whole = rng.integers(0, 4, shape)
    x = (rng.normal(size=shape) if sizes.uneven else whole).astype(sizes.dtype)
    chosen = np.stack([_choices(rng, sizes) for _ in range(routings)])
    weights = np.exp2(rng.integers(-1, 2, chosen.shape)).astype(np.float32)
    per_rank = sizes.experts // sizes.ranks
    experts = np.exp2(rng.integers(0, 2, (*shape[:2], per_rank, sizes.width))).astype(np.float32)
    target = rng.integers(0, 2, shape).astype(np.float32)
    arguments = (x, chosen, weights, experts, target)
    results = _program(sizes, mesh)(*[_put(mesh, a) for a in arguments])
    expected = [_expected(*a, sizes) for a in zip(*arguments, strict=True)]
    if spoil:
        expected[-1][3][-1, -1, -1] += 1
    return [
        name
        for i, (name, result) in enumerate(zip(_NAMES, results, strict=True))
        if not _agrees(
            result, np.stack([e[i] for e in expected]), sizes.uneven and name in _ROUNDED
        )
    ]


def _put(mesh: Any, a: np.ndarray) -> Any:
    """Returns `a`, of shape (routings, ranks, tokens, ...), sharded over the ranks."""
    a = a.reshape(len(a), -1, *a.shape[3:])
    sharding = jax.NamedSharding(mesh, jax.P(None, "i"))
    return jax.make_array_from_callback(a.shape, sharding, lambda index: a[index])


def _agrees(result: Any, expected: np.ndarray, rounded: bool) -> bool:
    """Whether this process's shards of `result` are right. 0 and -0 count as equal."""
    expected = expected.reshape(result.shape)
    for shard in result.addressable_shards:
        found, wanted = np.asarray(shard.data), expected[shard.index]
        if rounded:
            close = np.allclose(found, wanted, rtol=1e-5, atol=1e-4)
        else:
            close = np.array_equal(found, wanted)
        if not close:
            return False
    return True


def _expected(x, chosen, weights, experts, target, sizes: Sizes) -> list[np.ndarray]:
    """Returns NumPy's results for all ranks, in the order of `_NAMES`."""
    routed = oracle.route(chosen, sizes.experts, **sizes.limit)
    rows = oracle.dispatch(x, routed)
    kept = routed.row >= 0
    factors = experts.reshape(sizes.experts, sizes.width)
    per_row = np.ones(rows.shape, np.float32)
    per_row[routed.rank[kept], routed.row[kept]] = factors[chosen[kept]]
    z = oracle.combine((rows * per_row).astype(x.dtype), weights, routed)
    seen = oracle.dispatch(oracle.float8(x, sizes.block), routed) if sizes.block else rows
    gradients = _dense_gradients(x.astype(float), chosen, kept, weights, factors, target)
    return [
        *(seen, routed.sizes, routed.dropped, z),
        gradients[0].astype(x.dtype),
        gradients[1].astype(np.float32),
        gradients[2].astype(np.float32).reshape(experts.shape),
    ]


def _dense_gradients(x, chosen, kept, weights, factors, target) -> tuple[np.ndarray, ...]:
    """Returns the gradients of a mixture in which every expert sees every token.

    The function that is differentiated is the sum over tokens t, experts e and features d of
    gate[t, e] * factors[e, d] * x[t, d] * target[t, d], where the gate is the sum of the weights of
    the token's kept choices of the expert.
    """
    is_chosen = (chosen[..., None] == np.arange(len(factors))) & kept[..., None]
    gate = (is_chosen * weights[..., None]).sum(2)
    to_x = (gate @ factors) * target
    to_gate = (x * target) @ factors.T
    to_weights = (is_chosen * to_gate[:, :, None]).sum(-1)
    to_factors = np.einsum("rte,rtd->ed", gate, x * target)
    return to_x, to_weights, to_factors


if __name__ == "__main__":
    sys.exit(main())
