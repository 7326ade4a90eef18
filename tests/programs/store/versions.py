"""One job of a test of the store: it publishes versions, or reads what another job publishes.

Runs under `jax_cxl.launch`. Readers read the last version that is published, `--last`, and all
newer versions that they meet on the way, with shardings that change from version to version.
"""

import jax
import ml_dtypes
import numpy as np
from absl import app, flags

import jax_cxl

_WHERE = flags.DEFINE_string("where", None, "URI of the store.", required=True)
_PUBLISH = flags.DEFINE_bool("publish", False, "Whether to publish, or to read.")
_FIRST = flags.DEFINE_integer("first", 0, "The first version.")
_LAST = flags.DEFINE_integer("last", 10, "The last version.")

# One, two, three and four devices divide these.
_SHAPES = {"large": (1200, 1212), "narrow": (24, 12), "bytes": (12, 36)}
_DTYPES = {"large": np.float32, "narrow": ml_dtypes.bfloat16, "bytes": np.uint8}
_SPECS = (jax.P("i"), jax.P(None, "i"), jax.P())


def _values(version):
    rng = np.random.default_rng(version)
    return {
        name: rng.integers(0, 256, shape).astype(_DTYPES[name]) for name, shape in _SHAPES.items()
    }


def _shardings(mesh, version):
    return {
        name: jax.NamedSharding(mesh, _SPECS[(version + i) % len(_SPECS)])
        for i, name in enumerate(_SHAPES)
    }


def _publish(store, mesh):
    for version in range(_FIRST.value, _LAST.value + 1):
        tree = {
            name: jax.make_array_from_callback(x.shape, sharding, lambda index, x=x: x[index])
            for (name, x), sharding in zip(
                _values(version).items(), _shardings(mesh, version).values(), strict=True
            )
        }
        own = np.arange(5) * version
        assert store.publish("a", tree | {"host": own, "step": version}) == version
    store.flush("a")


def _read(store, mesh):
    last, result = -1, None
    while last < _LAST.value:
        saved = _values(0)
        like = {
            name: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=_shardings(mesh, last)[name])
            for name, x in saved.items()
        } | {"host": np.zeros(5, np.int64), "step": 0}
        result = store.read("a", like, newer_than=last, timeout=100, into=result)
        version, tree = result
        assert version > last == max(last, -1)
        assert tree["step"] == version
        np.testing.assert_array_equal(tree["host"], np.arange(5) * version)
        for name, x in _values(version).items():
            for shard in tree[name].addressable_shards:
                got = np.asarray(shard.data)
                assert got.tobytes() == x[shard.index].tobytes(), (name, shard.index)
        last = version


def main(_):
    jax_cxl.initialize()
    mesh = jax_cxl.make_mesh(
        (jax.device_count(),), ("i",), axis_types=(jax.sharding.AxisType.Auto,)
    )
    with jax_cxl.Store(_WHERE.value) as store:
        (_publish if _PUBLISH.value else _read)(store, mesh)
    print(f"done with {jax.process_index()}")


if __name__ == "__main__":
    app.run(main)
