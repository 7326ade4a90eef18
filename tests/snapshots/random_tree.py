"""Random trees of everything that a snapshot can have, on random devices."""

import jax
import ml_dtypes
import numpy as np

_FLOATS = [
    *("float16", "float32", "bfloat16", "float4_e2m1fn", "float8_e3m4", "float8_e4m3"),
    *("float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2"),
    *("float8_e5m2fnuz", "float8_e8m0fnu"),
]
_INTEGERS = [
    *("int2", "int4", "int8", "int16", "int32"),
    *("uint2", "uint4", "uint8", "uint16", "uint32"),
]
DTYPES = [*_FLOATS, *_INTEGERS, "bool", "complex64"]
# These dtypes are only for NumPy's arrays, because JAX has them only with jax_enable_x64.
_OF_NUMPY = ["float64", "int64", "uint64", "complex128"]
_BITS = {"float4_e2m1fn": 0xF}


class Child:
    """A node of a tree that is neither a dict nor a list. States of optimizers have such nodes."""

    def __init__(self, mu, nu):
        self.mu = mu
        self.nu = nu


jax.tree_util.register_pytree_with_keys(
    Child,
    lambda c: (
        ((jax.tree_util.GetAttrKey("mu"), c.mu), (jax.tree_util.GetAttrKey("nu"), c.nu)),
        None,
    ),
    lambda _, children: Child(*children),
)


def array(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Returns random bits, including those of infinity and NaN."""
    dtype = np.dtype(getattr(ml_dtypes, name, None) or name)
    if name == "bool":
        return rng.integers(0, 2, shape).astype(dtype)
    if name.startswith(("int", "uint")) and name[-1] in "24" and len(name) < 6:
        low = -(1 << int(name[-1]) - 1) if name.startswith("int") else 0
        return rng.integers(low, low + (1 << int(name[-1])), shape).astype(dtype)
    count = int(np.prod(shape, dtype=np.int64))
    raw = np.frombuffer(rng.bytes(count * dtype.itemsize), np.uint8) & _BITS.get(name, 0xFF)
    return raw.view(dtype).reshape(shape)


def sharding(rng: np.random.Generator, shape: tuple[int, ...]) -> jax.sharding.Sharding:
    """Returns a random sharding, on some of the devices in random order."""
    x, y = [(1, 1), (1, 2), (2, 2), (3, 1), (2, 3), (4, 2), (1, 8), (2, 1)][rng.integers(8)]
    if x * y == 1 and rng.integers(2):
        return jax.sharding.SingleDeviceSharding(jax.devices()[rng.integers(8)])
    devices = rng.permutation(np.array(jax.devices()))[: x * y].reshape(x, y)
    mesh = jax.sharding.Mesh(devices, ("x", "y"))
    spec = [None] * len(shape)
    options = [(("x", "y"),), ("x", "y"), ("y", "x"), ("x",), ("y",), ()]
    where = rng.permutation(len(shape))
    axes = options[rng.integers(len(options))]
    for dim, axis in zip(where, axes, strict=False):
        parts = np.prod([mesh.shape[name] for name in ([axis] if isinstance(axis, str) else axis)])
        if shape[dim] % parts == 0:
            spec[dim] = axis
    return jax.NamedSharding(mesh, jax.P(*spec))


def tree(rng: np.random.Generator):
    """Returns a tree with every kind of leaf."""
    sizes = [0, 1, 2, 3, 24, 48]

    def shape():
        return tuple(int(n) for n in rng.choice(sizes, rng.integers(0, 4)))

    def on_devices(name, shape):
        return jax.device_put(array(rng, name, shape), sharding(rng, shape))

    def keys(shape, impl):
        made = jax.random.split(jax.random.key(int(rng.integers(1 << 30)), impl=impl), shape)
        return jax.device_put(made, sharding(rng, shape))

    kinds = [str(name) for name in rng.permutation(DTYPES)]
    leaves = {name: on_devices(name, shape()) for name in kinds}
    return {
        **leaves,
        # These arrays fill several blocks of data. Their shards begin anywhere in the blocks.
        "large": [on_devices(kinds[0], (48, 5003)), on_devices("float32", (301, 24, 24))],
        "scalar": on_devices("bfloat16", ()),
        "none of it": on_devices("float32", (24, 0, 8)),
        "keys": (keys((24,), "threefry2x32"), keys((), "rbg"), keys((6, 2), "threefry2x32")),
        "numpy": {name: array(rng, name, shape()) for name in (*_OF_NUMPY, "bfloat16")},
        "generic": [np.float64(rng.random()), np.int16(-3), np.bool_(True)],
        "child": Child(on_devices("int32", (24, 3)), None),
        "a ]['\" name": [True, False, 0, -(1 << 70), 1.5, float("nan"), -float("inf"), "", "x]'Ä"],
        # JAX sorts the keys of a dict, so they must have an order.
        "nothing": {7: None, 3: 1},
    }


def elsewhere(rng: np.random.Generator, saved):
    """Returns a description of the same tree on other devices."""

    def other(x):
        if not isinstance(x, jax.Array):
            return x
        target = sharding(rng, x.shape)
        if rng.integers(3) == 0:
            return jax.device_put(x, target)
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=target)

    return jax.tree.map(other, saved, is_leaf=lambda x: x is None)
