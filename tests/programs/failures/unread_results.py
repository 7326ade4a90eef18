"""Rank 0 waits for the last result of many steps. The other ranks end and read nothing.

Usage: unread_results.py jax_cxl | lax
"""

import sys

import jax
import jax.numpy as jnp

import jax_cxl


def main(collectives):
    if collectives == "jax_cxl":
        jax_cxl.initialize()
        psum = jax_cxl.psum
    else:
        jax.distributed.initialize()
        psum = jax.lax.psum
    mesh = jax.sharding.Mesh(jax.devices(), ("i",))
    rows = jax.P("i")

    @jax.jit
    def step(x):
        add = jax.shard_map(
            lambda x: psum(jnp.tanh(x), "i") + 0 * x, mesh=mesh, in_specs=rows, out_specs=rows
        )
        return add(x)

    shape = (256 * jax.device_count(), 1024)
    sharding = jax.NamedSharding(mesh, rows)
    x = jax.jit(lambda: jnp.ones(shape), out_shardings=sharding)()
    for _ in range(20 if jax.local_device_count() > 1 else 60):
        x = step(x)
    # All this is in a function, so that nothing refers to the result when the process ends.
    if jax.process_index() == 0:
        x.block_until_ready()
        print("all steps")


main(sys.argv[1])
