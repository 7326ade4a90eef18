"""Measures the exchange of a mixture of experts in four ways: its time and its bytes.

    python -m jax_cxl.launch -n 2 benchmarks/models/moe.py --sizes=64KiB,1MiB,16MiB --json=moe.json

--sizes are the bytes of a rank's tokens. Each token chooses k of the experts. An exchange brings
the tokens to their experts and back. Here the experts do nothing in between.
examples/experts/exchanges.py has the ways: `dispatch` (jax_cxl.moe_dispatch and moe_combine),
`ragged` (two jax_cxl.ragged_all_to_all), `dense` (two jax_cxl.all_to_all) and `dense-lax` (two
jax.lax.all_to_all over Gloo, or NCCL). In the last two ways the rows of an expert are padded to
1.25 times the mean number of tokens per expert. All ways take turns.

A sample is one program that runs the exchange --calls times, each with the result of the previous
exchange. XLA allocates new memory for each run of a program, and at 16 MiB touching it for the
first time takes longer than the exchange. So a program with one exchange would measure page faults.
`bytes_written` counts the bytes that this rank wrote to the pool in one exchange (jax_cxl.stats()).
Results are checked against NumPy.

The routings are `uniform`; `skewed`, in which a fifth of the experts gets 80% of the choices;
`hot`, in which every token chooses expert 0, and its other choices are uniform; and `foreign`,
which is skewed toward experts of the next rank. The way `placed` is `dispatch` with the experts on
the ranks that jax_cxl.expert_placement chooses for this routing.
"""

import argparse
import json
import os
import pathlib
import sys
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

import jax_cxl
from jax_cxl import _sizes
from jax_cxl._commands.measuring import measure, report, results_file
from jax_cxl._commands.measuring.world import World

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "examples"))
from experts import exchanges

WAYS = {
    "dispatch": exchanges.dispatch,
    "placed": exchanges.dispatch,
    "ragged": exchanges.ragged,
    "dense": exchanges.dense(jax_cxl),
    "dense-lax": exchanges.dense(jax.lax),
}
ROUTINGS = ("uniform", "skewed", "hot", "foreign")
_AXIS = "i"
_FACTOR = 1.25


class Case:
    """One way to make the exchange, compiled for its arguments."""

    def __init__(self, way: Callable, x: np.ndarray, chosen: np.ndarray, options):
        ranks, tokens, k = chosen.shape
        mesh = jax_cxl.make_mesh((ranks,), (_AXIS,), axis_types=(jax.sharding.AxisType.Auto,))
        # The padded ways get room for 1.25 times the mean number of tokens per expert. If the
        # choices are uniform, few rows are then dropped. The other ways get room for all rows.
        factor = _FACTOR if way in (WAYS["dense"], WAYS["dense-lax"]) else options.room
        per_expert = exchanges.capacity(tokens, k, options.experts, ranks, factor)
        agreed = exchanges.Sizes(_AXIS, options.experts, per_expert)
        weights = np.full(chosen.shape, 1 / k, np.float32)
        self._calls = options.calls

        def body(x, chosen, weights, calls):
            def once(_, x):
                return way(x, chosen, weights, lambda rows: rows, agreed)

            # On GPUs the loop's bound is a constant: with a variable bound, a GPU would ask the
            # host in each iteration whether to go on.
            fixed = jax.default_backend() != "cpu"
            return jax.lax.fori_loop(0, options.calls if fixed else calls, once, x)

        split = jax.P(_AXIS)
        program = jax.shard_map(
            body,
            mesh=mesh,
            in_specs=(split, split, split, jax.P()),
            out_specs=split,
            check_vma=False,
        )
        sharding = jax.NamedSharding(mesh, split)

        def put(a):
            a = a.reshape(-1, a.shape[-1])
            return jax.make_array_from_callback(a.shape, sharding, lambda index: a[index])

        self._arguments = [put(a) for a in (x, chosen, weights)]
        self._program = (
            jax.jit(program, keep_unused=True).lower(*self._arguments, np.int32(1)).compile()
        )
        self.run(1)

    def run(self, calls: int) -> None:
        jax.block_until_ready(self._program(*self._arguments, np.int32(calls)))

    def result(self) -> np.ndarray:
        y = self._program(*self._arguments, np.int32(1))
        return np.asarray(y.addressable_shards[0].data)

    def bytes_written(self) -> int:
        """Returns how many bytes this process writes to the pool in one exchange."""
        before = jax_cxl.stats().bytes_published
        self.run(self._calls)
        return (jax_cxl.stats().bytes_published - before) // self._calls


def main() -> int:
    """Runs the benchmark; returns 1 if a result is wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", type=_sizes.parse_list, default=[1 << 16, 1 << 20, 1 << 24])
    parser.add_argument("--width", type=int, default=1024, help="features of a token")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--experts", type=int, default=8)
    parser.add_argument("--choices", type=int, default=2)
    parser.add_argument(
        "--routings",
        default=",".join(ROUTINGS[:3]),
        help=f"of {', '.join(ROUTINGS)} (default: %(default)s)",
    )
    parser.add_argument("--ways", default="dispatch,ragged,dense,dense-lax")
    parser.add_argument(
        "--calls",
        type=int,
        default=16,
        help="exchanges of a sample, on CPUs at least (default: 16)",
    )
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    jax_cxl.initialize()
    world = World(jax.process_index(), jax.process_count())
    found = report.header(load, results_file.command_line("benchmarks/models/moe.py", sys.argv[1:]))
    found["results"] = rows = []
    for routing in options.routings.split(","):
        for size in options.sizes:
            rows += _measure(world, options, routing, size)
            if world.rank == 0 and options.json:
                results_file.write(options.json, found)
    return int(any(row["wrong"] for row in rows))


def _choose(routing: str, ranks: int, tokens: int, options) -> np.ndarray:
    """Returns the experts that each token chooses, all different: (ranks, tokens, choices)."""
    experts = options.experts
    rng = np.random.default_rng(0)
    odds = np.ones(experts)
    if routing in ("skewed", "foreign"):
        often = max(1, round(experts / 5))
        odds[:often], odds[often:] = 0.8 / often, 0.2 / (experts - often)
    # Draw without replacement by Gumbel's trick: a token chooses the experts with its largest keys.
    keys = np.log(odds) + rng.gumbel(size=(ranks, tokens, experts))
    if routing == "hot":
        keys[..., 0] = np.inf
    chosen = np.argsort(-keys, -1)[..., : options.choices].astype(np.int32)
    if routing != "foreign":
        return chosen
    next_rank = (np.arange(ranks, dtype=np.int32) + 1) % ranks
    return (chosen + (next_rank * (experts // ranks))[:, None, None]) % experts


def _placed(chosen: np.ndarray, options) -> np.ndarray:
    """Returns the choices, with the experts renumbered as jax_cxl.expert_placement places them."""
    counts = [np.bincount(mine.ravel(), minlength=options.experts) for mine in chosen]
    return jax_cxl.expert_placement(counts).astype(np.int32)[chosen]


def _measure(world: World, options, routing: str, size: int) -> list[dict]:
    dtype = jnp.dtype(options.dtype)
    tokens = max(1, size // (options.width * dtype.itemsize))
    chosen = _choose(routing, world.size, tokens, options)
    # Whole numbers, whose sums are exact.
    x = np.random.default_rng(1).integers(0, 8, (world.size, tokens, options.width)).astype(dtype)
    most = np.bincount(chosen.ravel()).max()
    options.room = most * options.experts / chosen.size
    cases = {
        name: Case(WAYS[name], x, _placed(chosen, options) if name == "placed" else chosen, options)
        for name in options.ways.split(",")
    }
    calls = dict.fromkeys(cases, options.calls)
    if jax.default_backend() == "cpu":
        calls = {name: max(n, measure.enough(world, cases[name])) for name, n in calls.items()}
    times: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(options.repeats):
        for name, case in cases.items():
            times[name].append(measure.sample(world, case, calls[name]) * 1e6)
    rows = []
    for name, case in cases.items():
        # The experts do nothing, so every token gets itself back. A padded way may drop some of its
        # choices, and then the result is smaller.
        mine = x[world.rank]
        result = case.result()
        exact = name in ("dispatch", "placed", "ragged")
        wrong = np.count_nonzero(result != mine if exact else result > mine)
        row = {
            "way": name,
            "routing": routing,
            "bytes": tokens * options.width * dtype.itemsize,
            "ranks": world.size,
            "experts": options.experts,
            "choices": options.choices,
            "time_us": measure.spread(times[name]),
            "bytes_written": world.gather(case.bytes_written()),
            "wrong": int(sum(world.gather(int(wrong)))),
        }
        rows.append(row)
        if world.rank == 0:
            print(json.dumps(row), flush=True)
    return rows


if __name__ == "__main__":
    sys.exit(main())
