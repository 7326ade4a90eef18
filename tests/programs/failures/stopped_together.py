"""The last rank keeps the others waiting in a collective until a file exists."""

import os
import pathlib
import sys
import time

import jax
import jax.numpy as jnp

import jax_cxl


def main() -> None:
    jax_cxl.initialize()
    mesh = jax_cxl.make_mesh(
        (jax.device_count(),), ("i",), axis_types=(jax.sharding.AxisType.Auto,)
    )
    total = jax.jit(
        jax.shard_map(
            lambda x: jax_cxl.psum(x, "i"), mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P()
        )
    )
    ones = jax.device_put(jnp.ones(jax.device_count()), jax.NamedSharding(mesh, jax.P("i")))
    total(ones).block_until_ready()
    print(f"ready {os.getpid()}", flush=True)
    if jax.process_index() == jax.process_count() - 1:
        while not pathlib.Path(sys.argv[1]).exists():
            time.sleep(0.01)
    print(f"sum {float(total(ones)[0])}", flush=True)


if __name__ == "__main__":
    main()
