"""The first process waits for a version, and for readers: all processes get its error."""

import jax
import numpy as np
from absl import app, flags

import jax_cxl

_WHERE = flags.DEFINE_string("where", None, "URI of the store.", required=True)


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
        assert store.read("a", like).version == version
    print(f"done with {rank}")


if __name__ == "__main__":
    app.run(main)
