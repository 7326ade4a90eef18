"""Random collectives and their gradients through JAX, against NumPy, on MATRIX_RANKS (four) ranks.

Runs under `jax_cxl.launch`. Each program has many independent collectives, and runs several times
on new values. Process 0 writes a summary in JSON to its output and, with `--output`, to a file; a
process that finds a wrong element prints it and exits with 1.
"""

import functools
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
from jax_cxl._job import exchange

_COUNT = flags.DEFINE_integer("count", 20_000, "How many collectives run.")
_SECONDS = flags.DEFINE_float("seconds", 0, "Ends early after this many seconds; 0: never.")
_SEED = flags.DEFINE_integer("seed", None, "Seed; by default a fresh one.")
_SIZE = flags.DEFINE_integer("size", 60, "Collectives in a program.")
_RUNS = flags.DEFINE_integer("runs", 8, "How often a program runs.")
_DTYPES = flags.DEFINE_list("dtypes", list(reference.DTYPES), "Dtypes to choose from.")
_OUTPUT = flags.DEFINE_string("output", None, "File for the summary.")


def _agree(value: int) -> int:
    """Returns the value of process 0, on every process."""
    told = exchange.all_gather("soak", "soak", value.to_bytes(8, "little"), None)
    return int.from_bytes(told[0], "little")


def _run_program(rng: np.random.Generator, check_vma: bool, mesh, runs: int) -> tuple[int, int]:
    """Runs random collectives and the gradients of the linear ones `runs` times.

    Returns:
      how many elements are wrong here, and how many gradients were taken.
    """
    collectives = [
        random_collective.random_collective(rng, _DTYPES.value) for _ in range(_SIZE.value)
    ]
    linear = [c for c in collectives if c.transpose]
    others = [c for c in collectives if not c.transpose]
    spec = jax.P(mesh.axis_names)

    def body(xs, of):
        return [c.call(x[0])[None] for c, x in zip(of, xs, strict=True)]

    def over_ranks(of):
        return jax.shard_map(
            lambda xs: body(xs, of), mesh=mesh, in_specs=spec, out_specs=spec, check_vma=check_vma
        )

    @jax.jit
    def program(xs, cotangents, other_xs):
        results, pull = jax.vjp(over_ranks(linear), xs)
        return results, pull(cotangents)[0], over_ranks(others)(other_xs)

    def seed():
        return int(rng.integers(1 << 31))

    wrong = 0
    for _ in range(runs):
        xs, other_xs = (
            [reference.values(c.dtype, c.shape, seed()) for c in of] for of in (linear, others)
        )
        expected = [c.oracle(x) for c, x in zip(linear, xs, strict=True)]
        # Sums of cotangents have to be exact, because JAX adds them in its own order.
        cotangents = [
            reference.values(c.dtype, y.shape[1:], seed(), exact=True)
            for c, y in zip(linear, expected, strict=True)
        ]
        arrays = jax.tree.map(functools.partial(_on_mesh, mesh), (xs, cotangents, other_xs))
        results, gradients, other_results = program(*arrays)
        for c, out, y in zip(linear, results, expected, strict=True):
            wrong += _count_wrong(c.text, out, y)
        for c, out, ct in zip(linear, gradients, cotangents, strict=True):
            wrong += _count_wrong(f"gradient of {c.text}", out, c.transpose(ct))
        for c, out, x in zip(others, other_results, other_xs, strict=True):
            wrong += _count_wrong(c.text, out, c.oracle(x))
    return wrong, len(linear) * runs


def _on_mesh(mesh, x: np.ndarray) -> jax.Array:
    sharding = jax.NamedSharding(mesh, jax.P(mesh.axis_names))
    return jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])


def _count_wrong(text: str, out: jax.Array, expected: np.ndarray) -> int:
    wrong = 0
    for shard in out.addressable_shards:
        here = reference.count_wrong(np.asarray(shard.data), expected[shard.index])
        if here:
            print(f"{here} wrong elements on {shard.device}: {text}", flush=True)
        wrong += here
    return wrong


def _resident_mib() -> int:
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") >> 20


def main(_) -> None:
    # Slots are small for two reasons: there are many groups, each with its own rings, and large
    # arrays have to take many rounds. On GPUs, a slot needs 8 KiB for each rank.
    os.environ.setdefault("JAX_CXL_SLOT_BYTES", str(max(16384, 8192 * reference.RANKS)))
    jax.config.update("jax_enable_x64", True)
    jax_cxl.initialize()
    seed = _agree(secrets.randbits(60) if _SEED.value is None else _SEED.value)
    if jax.process_index() == 0:
        print(f"seed {seed}", flush=True)
    shape, names = tuple(random_collective.MESH.values()), tuple(random_collective.MESH)
    mesh = jax_cxl.make_mesh(shape, names, axis_types=(jax.sharding.AxisType.Auto,) * len(shape))
    start = time.monotonic()
    resident_mib = []
    count = programs = gradients = wrong = 0
    while count < _COUNT.value:
        rng = np.random.default_rng([seed, programs])
        found, taken = _run_program(rng, programs % 2 == 0, mesh, _RUNS.value)
        wrong += found
        gradients += taken
        programs += 1
        count += _SIZE.value * _RUNS.value
        resident_mib.append(_resident_mib())
        late = 0 < _SECONDS.value < time.monotonic() - start
        if _agree(int(late)):
            break
    summary = {
        "seed": seed,
        "collectives": count,
        "gradients": gradients,
        "programs": programs,
        "processes": jax.process_count(),
        "ranks": jax.device_count(),
        "wrong_elements": wrong,
        "seconds": round(time.monotonic() - start, 1),
        # Resident memory after the tenth program, in the middle of the run, and at its end.
        "resident_mib": [
            resident_mib[min(9, programs - 1)],
            resident_mib[programs // 2],
            resident_mib[-1],
        ],
    }
    if jax.process_index() == 0:
        print(json.dumps(summary), flush=True)
        if _OUTPUT.value:
            pathlib.Path(_OUTPUT.value).write_text(json.dumps(summary))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    app.run(main)
