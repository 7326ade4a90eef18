"""Publishes, and changes a table, before and after a process is lost in the middle of a version."""

import os

import jax
import numpy as np
from absl import app, flags

import jax_cxl
from jax_cxl._store.writing import saving

_POOL = flags.DEFINE_string("pool", None, "URI of the store.", required=True)


def main(_) -> None:
    jax_cxl.initialize()
    own = jax.process_index()
    store = jax_cxl.Store(f"{_POOL.value}?size=64MiB")

    def rows(devices):
        sharding = jax.NamedSharding(jax.sharding.Mesh(devices, ("i",)), jax.P("i"))
        x = np.arange(12, dtype=np.float32)
        return jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])

    if own == 0:
        jax_cxl.Table.create(store, "table", np.zeros((9, 1), np.float32), trained=True).close()
    jax_cxl.process_gather(np.zeros(1))
    table = jax_cxl.Table.open(store, "table")
    table.add([own], [[1.0]])
    tree = {"rows": rows(jax.devices())}
    store.publish("tree", tree)
    store.flush("tree")
    jax_cxl.process_gather(np.zeros(1))
    if own == 2:
        saving.Save.run = lambda save: os._exit(1)
    store.publish("tree", tree)
    left = jax_cxl.regroup()
    try:
        store.flush("tree", timeout=60)
    except jax_cxl.PeerLostError as error:
        print(error, flush=True)
    version = store.publish("tree", {"rows": rows(left)})
    store.flush("tree")
    print(f"version {version}: {store.read('tree').tree['rows'].astype(int).tolist()}", flush=True)
    step = table.add([own], [[1.0]])
    print(f"step {step}: {table.read()['rows'][:3, 0].astype(int).tolist()}", flush=True)
    jax_cxl.process_gather(np.zeros(1))
    if own == 0:
        os.remove(f"/dev/shm/jax_cxl_store.{_POOL.value.removeprefix('shm:')}")


if __name__ == "__main__":
    app.run(main)
