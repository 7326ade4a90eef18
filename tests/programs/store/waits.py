"""Processes wait for each other: all get the error of the first, or try again after a timeout."""

import time

import jax
import numpy as np
from absl import app, flags

import jax_cxl

_WHERE = flags.DEFINE_string("where", None, "URI of the store.", required=True)


def late(rank, call):
    """Calls a function until it raises no error; process 1 is too late for the first call."""
    if rank == 1:
        time.sleep(4)
    while True:
        try:
            return call()
        except (jax_cxl.CollectiveTimeoutError, jax_cxl.MismatchError) as error:
            print(f"tries again: {error}", flush=True)


def main(_):
    jax_cxl.initialize()
    rank = jax.process_index()
    sharding = jax.NamedSharding(jax.sharding.Mesh(jax.devices(), ("i",)), jax.P())
    like = {"x": jax.ShapeDtypeStruct((9,), np.float32, sharding=sharding)}
    tree = {"x": jax.make_array_from_callback((9,), sharding, lambda _: np.ones(9, np.float32))}
    with jax_cxl.Store(_WHERE.value) as store:
        store.publish("a", tree)
        try:
            store.read("a", like, newer_than=3, timeout=5)
        except jax_cxl.StoreTimeoutError as error:
            print(error, flush=True)
        views = []
        try:
            for _ in range(4):
                store.flush("a")
                views += [store.view("a")] if rank else []
                jax_cxl.process_gather(np.zeros(1))
                store.publish("a", tree)
        except jax_cxl.StoreError as error:
            print(error, flush=True)
        views.clear()
        jax_cxl.process_gather(np.zeros(1))
        version = store.publish("a", tree)
        store.flush("a")
        assert late(rank, lambda: store.read("a", like)).version == version
        if rank == 0:
            jax_cxl.Table.create(store, "t", np.zeros((9, 1), np.float32), trained=True).close()
        jax_cxl.process_gather(np.zeros(1))
        table = jax_cxl.Table.open(store, "t")
        assert late(rank, lambda: table.add([rank], [[1.0]])) == 1
        late(rank, lambda: store.publish("b", tree))
    print(f"done with {rank}")


if __name__ == "__main__":
    app.run(main)
