"""Sums by `jax.jit` alone. Process 1 has its own value of JAX_CXL_EARLY_BYTES."""

import os
import sys

import jax
import jax.numpy as jnp


def main(early_bytes: str) -> None:
    jax.config.update("jax_platforms", "cpu")
    if os.environ["JAX_CXL_LAUNCH_RANK"] == "1":
        os.environ["JAX_CXL_EARLY_BYTES"] = early_bytes
    jax.distributed.initialize()
    mesh = jax.sharding.Mesh(jax.devices(), ("i",))
    x = jax.make_array_from_callback(
        (8,), jax.NamedSharding(mesh, jax.P("i")), lambda at: jnp.arange(8.0)[at]
    )
    print(f"the sum is {jax.jit(jnp.sum)(x)}")


if __name__ == "__main__":
    main(sys.argv[1])
