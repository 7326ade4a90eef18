"""Connects to the other ranks as a script does under Slurm, and sums over all devices."""

import os

# These settings have an effect only if nothing imported JAX before the script.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=5"

import jax
import numpy as np

jax.distributed.initialize()

devices = jax.devices()
mesh = jax.sharding.Mesh(devices, "i")
numbers = jax.make_array_from_callback(
    (len(devices),),
    jax.sharding.NamedSharding(mesh, jax.P("i")),
    lambda index: np.arange(len(devices), dtype=np.float32)[index],
)
total = jax.jit(
    jax.shard_map(lambda x: jax.lax.psum(x, "i"), mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P())
)(numbers)
print(
    f"process {jax.process_index()} of {jax.process_count()},",
    f"{jax.local_device_count()} of {jax.device_count()} devices, sum {int(total[0])}",
)
