"""An all-reduce of jax.lax is taken over in levels: bits as in the model, bytes counted.

Runs under `python -m jax_cxl.launch -n 2 --devices-per-process 4`.
"""

import pathlib
import sys

import jax
import numpy as np
from absl import app
from jax import lax

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

from matrix import reference
from matrix.levels import Model

import jax_cxl
from jax_cxl._levels import table
from jax_cxl._primitives.native_enums import Op

ELEMENTS = 1 << 20


def main(_) -> None:
    # The table's own limit would take long.
    table.LEAST_BYTES[Op.ALL_REDUCE] = 1 << 21
    jax_cxl.initialize()
    mesh = jax_cxl.make_mesh((2, 4), ("host", "gpu"))
    names = mesh.axis_names
    rng = np.random.default_rng(0)
    processes = [device.process_index for device in mesh.devices.flat]
    sharding = jax.NamedSharding(mesh, jax.P(names))
    # The second one is too small for levels; four devices do not divide the third one evenly.
    for count, in_levels in ((ELEMENTS, True), (1 << 10, False), (ELEMENTS + 2, False)):
        values = rng.standard_normal((mesh.size, count)) * 10.0 ** rng.integers(-3, 3, count)
        values = values.astype(np.float32)
        x = jax.make_array_from_callback(values.shape, sharding, lambda i, v=values: v[i])
        with jax_cxl.replace_collectives(strict=True):
            program = jax.jit(
                jax.shard_map(
                    lambda v: lax.psum(v, names),
                    mesh=mesh,
                    in_specs=jax.P(names),
                    out_specs=jax.P(),
                )
            )
            jax.block_until_ready(program(x))
            before = jax_cxl.stats().bytes_published
            y = jax.block_until_ready(program(x))
        moved = jax_cxl.stats().bytes_published - before
        expected = Model(processes, in_levels).psum(values)[:1]
        for shard in y.addressable_shards:
            wrong = reference.difference(np.asarray(shard.data), expected)
            if wrong:
                raise SystemExit(f"{count} elements: {wrong}")
        if (moved <= 4 * count + 4096) != in_levels:
            raise SystemExit(f"{count} elements, {moved} bytes through the pool")
    print("taken over in levels", flush=True)


if __name__ == "__main__":
    app.run(main)
