"""A host callback raises on some devices, before a collective of the same program.

Usage: callback_raises.py INDEX..., with the indices of the devices on which it raises
"""

import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

import jax_cxl


def check(index, x):
    if index in map(int, sys.argv[1:]):
        raise ValueError(f"device {index} has no data")
    return x


def body(x):
    index = jax.lax.axis_index("i")
    x = jax.pure_callback(check, jax.ShapeDtypeStruct(x.shape, x.dtype), index, x)
    return jax_cxl.psum(x, "i")


def main():
    jax_cxl.initialize()
    mesh = jax.sharding.Mesh(jax.devices(), ("i",))
    rows = jax.P("i")
    x = jax.make_array_from_callback(
        (jax.device_count(),), jax.NamedSharding(mesh, rows), lambda _: np.ones(1, np.float32)
    )
    programs = [
        jax.jit(
            jax.shard_map(f, mesh=mesh, in_specs=rows, out_specs=rows, check_vma=False)
        ).lower(x).compile()
        for f in (body, lambda v: jax_cxl.psum(jnp.sin(v), "i"))
    ]  # fmt: skip
    programs[1](x).block_until_ready()
    since = time.monotonic()
    for program in programs:
        try:
            y = program(x)
            y.block_until_ready()
            print("no error", flush=True)
        except Exception as error:
            seconds = time.monotonic() - since
            text = " ".join(str(error).split())
            print(f"{seconds:.1f} s, {type(error).__name__}: {text[-900:]}", flush=True)
        if len(sys.argv) - 1 < jax.device_count():
            time.sleep(8)  # Nobody learns anything by the end of a process.
            break


main()
