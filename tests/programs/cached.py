"""Runs copies of a jitted function with collectives; prints hits and misses of JAX's cache."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType

import jax_cxl

_COPIES = 6


def main(directory):
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 4)
    jax.config.update("jax_compilation_cache_dir", directory)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    found = {"hits": 0, "misses": 0}

    def on_event(event, **_):
        for kind in found:
            if event == f"/jax/compilation_cache/cache_{kind}":
                found[kind] += 1

    jax.monitoring.register_event_listener(on_event)

    @jax.jit
    def inner(x):
        return jax_cxl.psum(x, "i")

    def body(x):
        totals = [inner(x * k) for k in range(_COPIES)]
        order = jax_cxl.all_gather(x[:3], "i")
        return jnp.stack([t[: order.shape[1]] for t in totals])[None], order[None]

    mesh = jax_cxl.make_mesh((4,), ("i",), axis_types=(AxisType.Auto,))
    step = jax.jit(
        jax.shard_map(body, mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P("i"), check_vma=False)
    )
    x = np.arange(4 * 5000, dtype=np.float32)
    parts = x.reshape(4, -1)
    for _ in range(5):
        totals, order = map(np.asarray, step(x))
        for rank in range(4):
            for k in range(_COPIES):
                np.testing.assert_array_equal(totals[rank, k], k * parts.sum(0)[:3])
            np.testing.assert_array_equal(order[rank], parts[:, :3])
    print(f"right, {found['hits']} hits, {found['misses']} misses")


if __name__ == "__main__":
    main(sys.argv[1])
