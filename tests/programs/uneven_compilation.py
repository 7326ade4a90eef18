"""Compiles different numbers of programs on the ranks. Their calls still have to match.

First, rank 1 compiles a program with collectives twice, and nobody runs it. Then all ranks run a
program whose calls are copies of one jitted function.

With --cache, each rank has its own persistent compilation cache. JAX fills only rank 0's cache. So
from the second job on, rank 0 loads the programs that the others compile. With --replace, the
collectives are those of jax.lax, taken over.
"""

import jax
import numpy as np
from absl import app, flags

import jax_cxl

_CACHE = flags.DEFINE_string("cache", "", "Folder of the ranks' compilation caches.")

_REPLACE = flags.DEFINE_bool("replace", False, "Whether jax.lax's collectives are taken over.")

_COPIES = 8


def _mapped(function, mesh):
    return jax.shard_map(function, mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P("i"))


def main(_) -> None:
    jax_cxl.initialize()
    found = {"cache_hits": 0, "cache_misses": 0}

    def on_event(event, **_):
        kind = event.rpartition("/")[2]
        if kind in found:
            found[kind] += 1

    jax.monitoring.register_event_listener(on_event)
    if _REPLACE.value:
        jax_cxl.replace_collectives(strict=True).start()
    if _CACHE.value:
        jax.config.update("jax_compilation_cache_dir", f"{_CACHE.value}/{jax.process_index()}")
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
    ranks = jax.device_count()
    mesh = jax_cxl.make_mesh((ranks,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    x = np.arange(ranks * _COPIES, dtype=np.int32).reshape(ranks, _COPIES)
    shared = jax.make_array_from_callback(
        x.shape, jax.NamedSharding(mesh, jax.P("i")), lambda index: x[index]
    )

    @jax.jit
    def inner(v):
        return (jax.lax if _REPLACE.value else jax_cxl).psum(v, "i")

    def copies(v):
        return jax.numpy.stack([inner(v[:, k] + k) for k in range(_COPIES)], axis=1)

    def never_run(v):
        return inner(v[:, 0]) + inner(v[:, 1]) * inner(v[:, 2])

    if jax.process_index() == 1:
        unused = jax.jit(_mapped(never_run, mesh)).lower(shared)
        unused.compile()
        unused.compile(compiler_options={"xla_embed_ir_in_executable": True})
    for _ in range(3):
        got = jax.jit(_mapped(copies, mesh))(shared)
        want = (x + np.arange(_COPIES)).sum(0)
        for shard in got.addressable_shards:
            np.testing.assert_array_equal(np.asarray(shard.data)[0], want)
        # This empties the caches of a rank, so that the rank compiles or loads the program again in
        # the next turn. Rank 2 keeps its program.
        if jax.process_index() != 2:
            jax.clear_caches()
    # Each rank makes at least one call in each of the three turns.
    assert jax_cxl.stats().calls >= 3, jax_cxl.stats()
    print(f"right, {found['cache_hits']} hits, {found['cache_misses']} misses", flush=True)


if __name__ == "__main__":
    app.run(main)
