"""Process 0 replaces collectives, and process 1 does not."""

import os
import time

import jax
import jax.numpy as jnp

import jax_cxl

if __name__ == "__main__":
    os.environ["JAX_CXL_REPLACE_COLLECTIVES"] = str(int(os.environ["JAX_CXL_LAUNCH_RANK"] == "0"))
    jax.distributed.initialize()
    jax.devices()
    start = time.monotonic()
    mesh = jax.sharding.Mesh(jax.devices(), ("i",))
    try:
        x = jax.device_put(jnp.arange(8.0), jax.NamedSharding(mesh, jax.P("i")))
        jax.jit(jnp.sum)(x).block_until_ready()
    except jax_cxl.MismatchError as error:
        print(f"after {time.monotonic() - start:.0f} s: {error}")
