"""Measures take_rows, ragged_all_to_all and dense all_to_alls in turn, with the same tokens.

    python -m jax_cxl.launch -n 2 benchmarks/collectives/rows.py --json=rows.json

Every rank has T tokens, sends each token to a random rank, and has room for 1.25 T tokens that it
receives. The script checks the results against NumPy first. `lax_padded` is jax.lax's dense
all_to_all (NCCL's on GPUs), padded to this room.

`time_us` is the time of a program with one call. It includes JAX's own time to start a program, to
allocate the result, and, for a ragged exchange, to fill its output with zeros. `in_program_us` is
the time of a call in a program with many calls. Ragged exchanges in this program update one output
in place.
"""

import argparse
import json
import os
import pathlib
import statistics
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

import jax_cxl
from jax_cxl._commands.measuring import report, results_file

CAPACITY = 1.25


def route(rng, ranks, tokens):
    """Returns random counts: element [i, j] is how many of rank i's tokens go to rank j."""
    draws = rng.integers(0, ranks, (ranks, tokens))
    return np.stack([np.bincount(draw, minlength=ranks) for draw in draws])


def room(tokens):
    """Returns how many rows the result of a rank has, if each rank has `tokens` tokens."""
    return int(CAPACITY * tokens)


def plan(counts, tokens):
    """Returns the arguments of the exchanges, for all ranks, from counts that `route` returned.

    The tokens of a rank are sorted by the rank that they go to.

    Returns:
      The indices and masks for take_rows, and the tables for ragged_all_to_all.
    """
    ranks = len(counts)
    first = np.cumsum(counts, 1) - counts
    into = room(tokens)
    assert counts.sum(0).max() <= into
    indices = np.full((ranks, into), -1, np.int32)
    masks = np.ones((ranks, tokens), bool)
    to = np.cumsum(counts, 0) - counts
    for sender in range(ranks):
        own = first[sender, sender]
        masks[sender, own : own + counts[sender, sender]] = False
        for receiver in range(ranks):
            n, at = counts[sender, receiver], to[sender, receiver]
            begin = sender * tokens + first[sender, receiver]
            indices[receiver, at : at + n] = np.arange(begin, begin + n)
    tables = np.stack([first, counts, to, counts.T], 1).astype(np.int32)
    return indices, masks, tables


def summary(times):
    return {
        name: {
            "median": round(statistics.median(t), 1),
            "min": round(min(t), 1),
            "max": round(max(t), 1),
        }
        for name, t in times.items()
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", default="128,1024,4096,16384")
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--calls", type=int, default=20)
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    jax_cxl.initialize()
    mesh = jax.sharding.Mesh(jax.devices(), ("i",))
    ranks = len(jax.devices())
    sharding = jax.NamedSharding(mesh, jax.P("i"))

    def put(x):
        return jax.make_array_from_callback(x.shape, sharding, lambda at: x[at])

    def program(body):
        mapped = jax.shard_map(
            lambda *a: body(*(x[0] for x in a))[None],
            mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P("i"), check_vma=False,
        )  # fmt: skip
        return jax.jit(mapped)

    def in_program(body):
        def many(x, *others):
            def step(carry, _):
                x, output = carry
                # The barrier makes the input of each call depend on the previous result, so XLA
                # cannot move the call out of the loop.
                return jax.lax.optimization_barrier((x, body(x, *others, output))), None

            shape = jax.eval_shape(body, x, *others)
            carry = x, jnp.zeros(shape.shape, shape.dtype)
            return jax.lax.scan(step, carry, None, options.calls)[0][1]

        return program(many)

    def ragged(x, indices, mask, table, output=None):
        if output is None:
            output = jnp.zeros((room(x.shape[0]), x.shape[1]), x.dtype)
        return jax_cxl.ragged_all_to_all(x, output, *table, axis_name="i")

    def take(x, indices, mask, table, output=None):
        return jax_cxl.take_rows(x, indices, "i", published=mask)

    def dense(x, indices, mask, table, output=None):
        return jax_cxl.all_to_all(x, "i", 0, 0, tiled=True)

    def padded(x, indices, mask, table, output=None):
        rows = room(x.shape[0]) // ranks * ranks
        x = jnp.concatenate([x, jnp.zeros((rows - x.shape[0], x.shape[1]), x.dtype)])
        return jax.lax.all_to_all(x, "i", 0, 0, tiled=True)

    functions = {"take_rows": take, "ragged": ragged, "dense": dense, "lax_padded": padded}
    results = []
    for tokens in map(int, options.tokens.split(",")):
        rng = np.random.default_rng(tokens)
        counts = route(rng, ranks, tokens)
        indices, masks, tables = plan(counts, tokens)
        bits = rng.integers(0, 2**15, (ranks, tokens, options.width), np.uint16)
        x = bits.view(jnp.bfloat16)
        arguments = [put(a) for a in (x, indices, masks, tables)]
        whole = bits.reshape(-1, options.width)
        expected = np.where(indices[..., None] >= 0, whole[np.maximum(indices, 0)], 0)
        programs = {name: program(body) for name, body in functions.items()}
        loops = {name: in_program(body) for name, body in functions.items()}
        wrong = {}
        for name, run in programs.items():
            out = jax.block_until_ready(run(*arguments))
            if name in ("take_rows", "ragged"):
                wrong[name] = 0
                for shard in out.addressable_shards:
                    found = np.asarray(shard.data).view(np.uint16)
                    wrong[name] += int((found != expected[shard.index]).sum())
        times = {name: [] for name in programs}
        in_loops = {name: [] for name in programs}
        for _ in range(options.repeats):
            for found, ways, runs in ((times, programs, options.calls), (in_loops, loops, 1)):
                for name, run in ways.items():
                    jax.block_until_ready(run(*arguments))
                    multihost_utils.sync_global_devices("turn")
                    begin = time.perf_counter()
                    for _ in range(runs):
                        out = run(*arguments)
                    jax.block_until_ready(out)
                    took = time.perf_counter() - begin
                    found[name].append(took / options.calls * 1e6)
        record = {
            "tokens": tokens,
            "bytes": tokens * options.width * 2,
            "wrong": wrong,
            "time_us": summary(times),
            "in_program_us": summary(in_loops),
        }
        for key, of_dense in (
            ("time_us", "times_dense"),
            ("in_program_us", "times_dense_in_program"),
        ):
            medians = {name: found["median"] for name, found in record[key].items()}
            record[of_dense] = {
                name: round(median / medians["dense"], 2) for name, median in medians.items()
            }
        results.append(record)
        if jax.process_index() == 0:
            print(json.dumps(record), flush=True)
    if options.json and jax.process_index() == 0:
        command = results_file.command_line("benchmarks/collectives/rows.py", sys.argv[1:])
        results_file.write(options.json, report.header(load, command) | {"results": results})
    if any(n for record in results for n in record["wrong"].values()):
        raise SystemExit("wrong rows")


if __name__ == "__main__":
    main()
