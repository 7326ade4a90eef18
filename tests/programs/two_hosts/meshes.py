"""Makes meshes of the devices of two hosts, and communicates over one."""

import sys

import jax
import jax.numpy as jnp

import jax_cxl


def main(port: int, process: int, pool: str) -> None:
    jax.distributed.initialize(f"127.0.0.1:{port}", 2, process)
    jax_cxl.initialize(pool)
    try:
        jax.make_mesh((2,), ("i",))
    except ValueError as error:
        print("jax.make_mesh:", error, flush=True)
    mesh = jax_cxl.make_mesh((1, jax.device_count()), ("j", "i"))
    print([device.process_index for device in mesh.devices.flat], mesh.axis_types, flush=True)
    mesh = jax_cxl.make_mesh(
        (jax.device_count(),), ("i",), axis_types=(jax.sharding.AxisType.Auto,)
    )
    total = jax.jit(
        jax.shard_map(
            lambda x: jax_cxl.psum(x, "i"), mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P()
        )
    )
    print("sum", total(jnp.arange(8.0)), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
