"""Checks collectives of jax.lax that are taken over in levels: their results and their bytes.

Runs under `python -m jax_cxl.launch -n 2 --devices-per-process 4`, with a tuning table that has
levels for sums from 2 MiB up.
"""

import pathlib
import sys
from typing import Any

import jax
import numpy as np
from absl import app
from jax import lax

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

from matrix import reference
from matrix.levels import Model

import jax_cxl

ELEMENTS = 1 << 20
AXES = ("host", "gpu")
# The function, and how many bytes a process of four devices sends for each byte of one device.
OPERATIONS = {
    "psum": (lambda v: lax.psum(v, AXES), 1.0),
    "psum_scatter": (lambda v: lax.psum_scatter(v, AXES, tiled=True), 0.5),
    "all_gather": (lambda v: lax.all_gather(v, AXES, tiled=True), 4.0),
    "all_to_all": (lambda v: lax.all_to_all(v, AXES, 0, 0, tiled=True), 2.0),
}


def check(mesh: Any, name: str, count: int, in_levels: bool, levels: bool | None) -> None:
    """Compares one collective, of `count` elements on each device, with the model."""
    processes = [device.process_index for device in mesh.devices.flat]
    sharding = jax.NamedSharding(mesh, jax.P(AXES))
    rng = np.random.default_rng(count)
    values = rng.standard_normal((mesh.size, count)) * 10.0 ** rng.integers(-3, 3, count)
    values = values.astype(np.float32)
    x = jax.make_array_from_callback((mesh.size * count,), sharding, lambda i: _row(values, i))
    function, bytes_sent = OPERATIONS[name]
    with jax_cxl.replace_collectives(strict=True, levels=levels):
        program = jax.jit(
            jax.shard_map(
                function, mesh=mesh, in_specs=jax.P(AXES), out_specs=jax.P(AXES), check_vma=False
            )
        )
        jax.block_until_ready(program(x))
        before = jax_cxl.stats().bytes_published
        y = jax.block_until_ready(program(x))
        (found,) = jax_cxl.explain(program, x).collectives
    if (found.through, "in levels" in found.why) != ("pool", in_levels):
        raise SystemExit(f"{name} of {count} elements, explained as {found}")
    moved = jax_cxl.stats().bytes_published - before
    expected = getattr(Model(processes, in_levels), name)(values).reshape(-1)
    for shard in y.addressable_shards:
        wrong = reference.difference(np.asarray(shard.data), expected[shard.index])
        if wrong:
            raise SystemExit(f"{name} of {count} elements: {wrong}")
    few = moved <= bytes_sent * 4 * count + 4096
    if few != (in_levels or name == "all_gather"):
        raise SystemExit(f"{name} of {count} elements, {moved} bytes through the pool")


def _row(values: np.ndarray, index: Any) -> np.ndarray:
    return values.reshape(-1)[index]


def main(_) -> None:
    jax_cxl.initialize()
    mesh = jax_cxl.make_mesh((2, 4), AXES)
    # The tuning table makes the second array too small for levels. Four devices cannot share the
    # third one evenly, and yet it runs in levels.
    for count, in_levels in ((ELEMENTS, True), (1 << 10, False), (ELEMENTS + 2, True)):
        check(mesh, "psum", count, in_levels, None)
    check(mesh, "psum", ELEMENTS, False, levels=False)
    for name in OPERATIONS:
        check(mesh, name, 1 << 12, True, levels=True)
    print("taken over in levels", flush=True)


if __name__ == "__main__":
    app.run(main)
