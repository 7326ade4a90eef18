"""Random collectives through JAX, against NumPy, under `jax_cxl.launch` on four ranks.

Programs of many independent collectives each, which run several times on new values. Process
0 writes a summary in JSON to its output and, with `--output`, to a file; a process that finds
a wrong element says so and exits with 1.
"""

import json
import os
import pathlib
import secrets
import sys
import time

import jax
import numpy as np
from absl import app, flags

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

from matrix import random_collective, reference

import jax_cxl

_COUNT = flags.DEFINE_integer("count", 20_000, "How many collectives run.")
_SECONDS = flags.DEFINE_float("seconds", 0, "Ends early after so many; 0: never.")
_SEED = flags.DEFINE_integer("seed", None, "Seed; by default a fresh one.")
_SIZE = flags.DEFINE_integer("size", 60, "Collectives in a program.")
_RUNS = flags.DEFINE_integer("runs", 8, "How often a program runs.")
_OUTPUT = flags.DEFINE_string("output", None, "File for the summary.")


def _agree(value: int) -> int:
    """Returns the value of process 0, on every process."""
    if jax.process_count() == 1:
        return value
    from jax.experimental import multihost_utils

    halves = np.array([value >> 31, value & (2**31 - 1)], np.int32)
    high, low = (int(half) for half in multihost_utils.broadcast_one_to_all(halves))
    return (high << 31) | low


def _run_program(rng: np.random.Generator, check_vma: bool, mesh, runs: int) -> int:
    """Runs random collectives `runs` times; returns how many elements are wrong here."""
    collectives = [random_collective.random_collective(rng) for _ in range(_SIZE.value)]
    spec = jax.P(mesh.axis_names)
    sharding = jax.NamedSharding(mesh, spec)

    def body(xs):
        return [c.call(x[0])[None] for c, x in zip(collectives, xs, strict=True)]

    program = jax.jit(
        jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=check_vma)
    )
    wrong = 0
    for _ in range(runs):
        xs = [reference.values(c.dtype, c.shape, int(rng.integers(1 << 31))) for c in collectives]
        arrays = [
            jax.make_array_from_callback(x.shape, sharding, lambda index, x=x: x[index]) for x in xs
        ]
        for c, x, out in zip(collectives, xs, program(arrays), strict=True):
            expected = c.oracle(x)
            for shard in out.addressable_shards:
                here = reference.count_wrong(np.asarray(shard.data), expected[shard.index])
                if here:
                    print(f"{here} wrong elements on {shard.device}: {c.text}", flush=True)
                wrong += here
    return wrong


def main(_) -> None:
    # Many groups, each with rings of its own; and large arrays take many rounds.
    os.environ.setdefault("JAX_CXL_SLOT_BYTES", "16384")
    jax.config.update("jax_enable_x64", True)
    jax_cxl.initialize()
    seed = _agree(secrets.randbits(60) if _SEED.value is None else _SEED.value)
    if jax.process_index() == 0:
        print(f"seed {seed}", flush=True)
    shape, names = tuple(random_collective.MESH.values()), tuple(random_collective.MESH)
    mesh = jax_cxl.make_mesh(shape, names, axis_types=(jax.sharding.AxisType.Auto,) * len(shape))
    start = time.monotonic()
    count = programs = wrong = 0
    while count < _COUNT.value:
        rng = np.random.default_rng([seed, programs])
        wrong += _run_program(rng, programs % 2 == 0, mesh, _RUNS.value)
        programs += 1
        count += _SIZE.value * _RUNS.value
        late = 0 < _SECONDS.value < time.monotonic() - start
        if _agree(int(late)):
            break
    summary = {
        "seed": seed,
        "collectives": count,
        "programs": programs,
        "processes": jax.process_count(),
        "ranks": jax.device_count(),
        "wrong_elements": wrong,
        "seconds": round(time.monotonic() - start, 1),
    }
    if jax.process_index() == 0:
        print(json.dumps(summary), flush=True)
        if _OUTPUT.value:
            pathlib.Path(_OUTPUT.value).write_text(json.dumps(summary))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    app.run(main)
