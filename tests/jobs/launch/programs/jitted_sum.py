"""Sums over all devices by `jax.jit` alone, then prints how many bytes went through the pool.

It imports jax_cxl only after it has the sum.
"""

import os

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np


def main() -> None:
    jax.distributed.initialize()
    numbers = np.arange(4096, dtype=np.float32)
    mesh = jax.sharding.Mesh(jax.devices(), "i")
    sharding = jax.sharding.NamedSharding(mesh, jax.P("i"))
    array = jax.make_array_from_callback(numbers.shape, sharding, lambda index: numbers[index])
    rows = jax.jit(lambda x: jnp.sum(x.reshape(-1, 1024), 0))(array)
    np.testing.assert_array_equal(rows, numbers.reshape(-1, 1024).sum(0))

    import jax_cxl

    variable = os.environ["JAX_CXL_REPLACE_COLLECTIVES"]
    published = jax_cxl.stats().bytes_published
    print(f"variable {variable!r}, through the pool {published} bytes")


main()
