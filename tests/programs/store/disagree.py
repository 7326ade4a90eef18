"""Processes disagree about what to publish, or one of them cannot publish: all get an error."""

import jax
import numpy as np
from absl import app, flags

import jax_cxl

_WHERE = flags.DEFINE_string("where", None, "URI of the store.", required=True)


def _raises(kind, words, call):
    try:
        call()
    except kind as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"no error with {words!r}")


def main(_):
    jax_cxl.initialize()
    rank = jax.process_index()
    with jax_cxl.Store(_WHERE.value) as store:
        _raises(
            jax_cxl.MismatchError, "different names", lambda: store.publish(f"n{rank}", {"x": 1})
        )
        bad = {"x": object()} if rank else {"x": 1}
        _raises((jax_cxl.StoreError, TypeError), "of type object", lambda: store.publish("a", bad))
        assert not store.list()
        store.publish("a", {"x": 1}, version=5)
        _raises(
            jax_cxl.MismatchError,
            "different trees",
            lambda: store.publish("a", {"x": 2, "y": rank} if rank else {"x": 2}),
        )
        _raises(
            jax_cxl.MismatchError,
            "different versions",
            lambda: store.publish("a", {"x": 2}, version=7 + rank),
        )
        large = {"x": np.zeros(64 << 20, np.uint8)}
        _raises(jax_cxl.PoolError, "is too small", lambda: store.publish("a", large))
        assert store.publish("a", {"x": 3}) == 6
        store.flush("a")
        assert store.read("a").tree == {"x": 3}
        store.delete("a")
        assert store.publish("a", {"x": 4}) == 0
    print(f"done with {rank}")


if __name__ == "__main__":
    app.run(main)
