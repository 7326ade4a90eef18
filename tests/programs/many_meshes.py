"""Runs collectives over many different meshes, in a pool that holds few groups at a time.

Every process computes the same meshes, of random devices in random order. Processes run ahead of
each other, because a process takes part only in the meshes with its devices, and some processes
pause. All results are compared bitwise with NumPy. The collectives are those of `jax.lax`, which
jax_cxl replaces, or its own with `--library=jax_cxl`. With `--victim`, that process kills itself
partway through the meshes; the others report the error that they get.

Runs under `python -m jax_cxl.launch` with any number of processes and devices.
"""

import os
import signal
import sys
import time

import jax
import numpy as np
from absl import app, flags

import jax_cxl
import jax_cxl.lax

_MESHES = flags.DEFINE_integer("meshes", 40, "How many meshes.")
_LIBRARY = flags.DEFINE_enum("library", "jax", ("jax", "jax_cxl"), "Whose collectives.")
_SEED = flags.DEFINE_integer("seed", 0, "Seed of the meshes and pauses.")
_VICTIM = flags.DEFINE_integer("victim", -1, "The process that dies; -1: none.")


def _run(devices: list[jax.Device], count: int) -> None:
    n = len(devices)
    lax = jax.lax if _LIBRARY.value == "jax" else jax_cxl.lax
    mesh = jax.sharding.Mesh(np.array(devices), ("i",))
    ring = [(k, (k + 1) % n) for k in range(n)]

    def body(x):
        return lax.psum(x, "i"), lax.all_gather(x, "i"), lax.ppermute(x, "i", ring)

    spec = jax.P("i")
    program = jax.jit(
        jax.shard_map(
            body, mesh=mesh, in_specs=spec, out_specs=(jax.P(), jax.P(), spec), check_vma=False
        )
    )
    values = np.arange(n * count, dtype=np.int32).reshape(n, 1, count)
    x = jax.make_array_from_callback(
        (n, count), jax.NamedSharding(mesh, spec), lambda index: values[:, 0][index]
    )
    expected = values.sum(0), values, np.roll(values[:, 0], 1, 0)
    for out, want in zip(program(x), expected, strict=True):
        for shard in out.addressable_shards:
            assert (np.asarray(shard.data) == want[shard.index]).all(), (devices, count)


def _another_group(rng: np.random.Generator, groups: set[tuple[int, ...]]) -> tuple[int, ...]:
    """Returns a random group, as numbers of devices, that is not in `groups` yet, and adds it."""
    while True:
        size = int(rng.integers(2, jax.device_count() + 1))
        chosen = tuple(rng.permutation(jax.device_count())[:size].tolist())
        if chosen not in groups:
            groups.add(chosen)
            return chosen


def main(_) -> None:
    if _LIBRARY.value == "jax":
        jax_cxl.replace_collectives(local=True).start()
    else:
        jax_cxl.initialize()
    rng = np.random.default_rng(_SEED.value)
    own = np.random.default_rng([_SEED.value, jax.process_index()])
    groups: set[tuple[int, ...]] = set()
    for number in range(_MESHES.value):
        if jax.process_index() == _VICTIM.value and number == _MESHES.value // 2:
            os.kill(os.getpid(), signal.SIGKILL)
        chosen = _another_group(rng, groups)
        count = int(rng.choice([1, 300, 100_000]))
        devices = [jax.devices()[k] for k in chosen]
        if all(device.process_index != jax.process_index() for device in devices):
            continue
        if own.random() < 0.2:
            time.sleep(0.02)
        try:
            _run(devices, count)
        except jax_cxl.PeerLostError as error:
            if _VICTIM.value < 0:
                raise
            print(f"lost: {error}", flush=True)
            sys.exit(7)
    print(f"{len(groups)} meshes right", flush=True)


if __name__ == "__main__":
    jax.distributed.initialize()
    app.run(main)
