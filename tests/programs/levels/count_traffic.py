"""Counts what collectives in levels send through the pool, on two processes of four devices.

Runs under `python -m jax_cxl.launch -n 2 --devices-per-process 4`.
"""

from typing import Any

import jax
import numpy as np
from absl import app

import jax_cxl

AXES = ("host", "gpu")
ELEMENTS = 1 << 18


def traffic(mesh: Any, function: Any) -> tuple[int, int]:
    """Returns the bytes and calls of this process in one collective of 1 MiB on each device."""
    sharding = jax.NamedSharding(mesh, jax.P(AXES))
    x = jax.make_array_from_callback(
        (mesh.size * ELEMENTS,), sharding, lambda _: np.ones(ELEMENTS, np.float32)
    )
    program = jax.jit(
        jax.shard_map(
            function, mesh=mesh, in_specs=jax.P(AXES), out_specs=jax.P(AXES), check_vma=False
        )
    )
    jax.block_until_ready(program(x))
    before = jax_cxl.stats()
    jax.block_until_ready(program(x))
    after = jax_cxl.stats()
    return after.bytes_published - before.bytes_published, after.calls - before.calls


def main(_) -> None:
    jax_cxl.initialize()
    mesh = jax_cxl.make_mesh((2, 4), AXES)
    size, per_process = 4 * ELEMENTS, 4

    def psum(levels):
        return lambda x: jax_cxl.psum(x, AXES, levels=levels)

    def exchange(levels):
        return lambda x: jax_cxl.all_to_all(x, AXES, 0, 0, tiled=True, levels=levels)

    def gather(levels):
        return lambda x: jax_cxl.all_gather(x, AXES, tiled=True, levels=levels)

    found = {
        (name, levels): traffic(mesh, function(levels))
        for name, function in (("psum", psum), ("all_to_all", exchange), ("all_gather", gather))
        for levels in (False, True)
    }
    if jax.process_index() == 0:
        print(found, flush=True)
    flat, levels = found["psum", False][0], found["psum", True][0]
    if levels * 4 > flat + 4096:
        raise SystemExit(f"psum in levels wrote {levels} bytes, flat {flat}")
    # In levels, each device sends half of its array, in one message, to a device of the other
    # process.
    if found["all_to_all", True] != (per_process * size // 2, per_process):
        raise SystemExit(f"all_to_all in levels: {found['all_to_all', True]}")
    # Without levels, a device sends seven of its eight blocks through the pool.
    if found["all_to_all", False][0] != per_process * size // 8 * 7:
        raise SystemExit(f"all_to_all flat: {found['all_to_all', False]}")
    print("traffic right", flush=True)


if __name__ == "__main__":
    app.run(main)
