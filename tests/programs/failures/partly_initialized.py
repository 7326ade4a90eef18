"""Only some ranks initialize, or ranks communicate after `shutdown`; the argument chooses."""

import os
import sys
import time

import jax
import jax.numpy as jnp

import jax_cxl

how = sys.argv[1]
rank = int(os.environ["JAX_CXL_LAUNCH_RANK"])
if how in ("lowers", "never", "config"):
    jax.distributed.initialize()
before = dict(jax.config.values)
try:
    if rank == 0 or how in ("config", "shutdown"):
        jax_cxl.initialize()
except jax_cxl.NotInitializedError as error:
    print(f"caught {error}", flush=True)
    os._exit(3)
if how == "never" and rank == 1:
    time.sleep(600)
if how == "config":
    changed = {key for key, value in jax.config.values.items() if before[key] != value}
    print(f"changed {sorted(changed)}", flush=True)

mesh = jax.make_mesh((jax.device_count(),), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
total = jax.jit(
    jax.shard_map(lambda x: jax_cxl.psum(x, "i"), mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P())
)
x = jnp.arange(float(jax.device_count()))
print(f"total {float(total(x)[0])}", flush=True)
if how == "shutdown":
    jax_cxl.shutdown()
    try:
        print(f"again {float(total(x)[0])}", flush=True)
    except jax_cxl.NotInitializedError as error:
        print(f"caught {error}", flush=True)
