"""Saves compiled programs with collectives, or loads them as the first programs of a job.

    loaded.py {save,load,cached,other_job} DIRECTORY

`save` compiles and saves; `load` loads and runs; `cached` compiles a program that an earlier job
has left in JAX's cache, before it loads the others; `other_job` loads programs that do not fit.
"""

import atexit
import pathlib
import pickle

import jax
import jax.numpy as jnp
import numpy as np
from absl import app
from jax.experimental import serialize_executable

import jax_cxl


def _sum_twice(mesh):
    """Returns a function that calls jax_cxl itself, with equal attributes in both calls."""

    def body(x):
        return jax_cxl.psum(x, "i") + jax_cxl.psum(x * x, "i")

    return jax.jit(jax.shard_map(body, mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P()))


def _show_calls():
    print(f"{jax_cxl.stats().calls} calls in all", flush=True)


def main(arguments):
    mode, folder = arguments[1], pathlib.Path(arguments[2])
    atexit.register(
        _show_calls
    )  # Before jax_cxl starts, so that it runs after jax_cxl has stopped.
    jax.distributed.initialize()
    # One device of each process.
    devices = [next(d for d in jax.devices() if d.process_index == p) for p in (0, 1)]
    mesh = jax.sharding.Mesh(devices, ("i",))
    file = folder / f"{jax.process_index()}.pickle"
    values = np.arange(2 * len(devices), dtype=np.float32)
    split = jax.NamedSharding(mesh, jax.P("i"))
    x = jax.make_array_from_callback(values.shape, split, lambda i: values[i])
    if mode == "save":
        functions = jax.jit(jnp.sum), jax.jit(lambda x: x[::-1]), _sum_twice(mesh)
        file.write_bytes(
            pickle.dumps([serialize_executable.serialize(f.lower(x).compile()) for f in functions])
        )
    found = []
    jax.monitoring.register_event_listener(lambda event, **_: found.append(event))
    if mode in ("save", "cached"):
        assert jax.jit(jnp.max)(x) == values.max()
        print(f"{found.count('/jax/compilation_cache/cache_hits')} hits", flush=True)
    saved = pickle.loads(file.read_bytes())

    def load(program, devices=devices):
        return serialize_executable.deserialize_and_load(*program, execution_devices=devices)

    if mode == "other_job":
        for each in saved:
            try:
                load(each)
            except jax_cxl.NotInitializedError as error:
                print(f"refused: {error}", flush=True)
        return
    total, backwards, both = map(load, saved)
    rows = values.reshape(len(devices), -1)
    for _ in range(3):
        assert total(x) == values.sum()
        for shard in backwards(x).addressable_shards:
            np.testing.assert_array_equal(shard.data, values[::-1][shard.index])
        np.testing.assert_array_equal(both(x), rows.sum(0) + (rows * rows).sum(0))
    print(f"right: {jax_cxl.stats().calls} calls", flush=True)
    if mode == "cached":
        try:
            load(saved[1], devices[::-1])
        except jax_cxl.NotInitializedError as error:
            print(f"refused: {error}", flush=True)


if __name__ == "__main__":
    app.run(main)
