"""Trees whose shardings change from version to version, for programs that save and read them."""

import jax
import ml_dtypes
import numpy as np

import jax_cxl

# One, two, three or four devices can share these evenly.
_SHAPES = {"large": (1200, 1212), "narrow": (24, 12), "bytes": (12, 36)}
_DTYPES = {"large": np.float32, "narrow": ml_dtypes.bfloat16, "bytes": np.uint8}
_SPECS = (jax.P("i"), jax.P(None, "i"), jax.P())


def mesh_of_all():
    """Returns a mesh of all devices. Its axis is `i`."""
    return jax_cxl.make_mesh(
        (jax.device_count(),), ("i",), axis_types=(jax.sharding.AxisType.Auto,)
    )


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


def tree(mesh, version):
    """Returns the tree of a version, with the shardings of this version."""
    shardings = _shardings(mesh, version)
    return {
        name: jax.make_array_from_callback(x.shape, shardings[name], x.__getitem__)
        for name, x in _values(version).items()
    } | {"host": np.arange(5) * version, "step": version}


def like(mesh, version):
    """Describes a tree of any version, with the shardings of `version`."""
    shardings = _shardings(mesh, version)
    return {
        name: jax.ShapeDtypeStruct(shape, _DTYPES[name], sharding=shardings[name])
        for name, shape in _SHAPES.items()
    } | {"host": np.zeros(5, np.int64), "step": 0}


def check(found, version):
    """Raises AssertionError if this process's part of `found` differs from `version` in any bit."""
    assert found["step"] == version
    np.testing.assert_array_equal(found["host"], np.arange(5) * version)
    for name, x in _values(version).items():
        for shard in found[name].addressable_shards:
            got = np.asarray(shard.data)
            assert got.tobytes() == x[shard.index].tobytes(), (name, shard.index)
