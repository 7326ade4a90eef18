"""Trees of every kind, as programs have them, each with a name.

The values are the same in all jobs, so that a job with another number of processes and devices can
check what it restores. Only the trees of `own` differ from process to process.
"""

import collections
import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

_DTYPES = (
    *("float32", "float16", "bfloat16", "float8_e4m3fn", "int4", "int8", "uint16", "int32"),
    *("uint32", "bool", "complex64"),
)
_SHAPE = (24, 12)  # One to six devices divide it.


class Point(NamedTuple):
    x: Any
    y: Any


class Empty(NamedTuple):
    pass


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Registered:
    w: Any
    b: Any


def _unpinned(device):
    """Returns a kind of memory that is not pinned: on GPUs "device", as they have no other."""
    kinds = {memory.kind for memory in device.addressable_memories()}
    return "unpinned_host" if "unpinned_host" in kinds else "device"


def values(dtype="float32", shape=_SHAPE, seed=0):
    """Returns values that are exact in every dtype."""
    made = (np.arange(np.prod(shape, dtype=int)) * 7 + seed) % 8 if shape != () else np.array(seed)
    return made.reshape(shape).astype(getattr(ml_dtypes, dtype, None) or dtype)


class Devices:
    """Makes arrays on the devices of this job."""

    def __init__(self):
        auto = jax.sharding.AxisType.Auto
        self.rank, self.processes = jax.process_index(), jax.process_count()
        self.all = np.asarray(jax.devices())
        self.local = np.asarray(jax.local_devices())
        self.mesh = jax.sharding.Mesh(self.all, ("d",), axis_types=(auto,))
        self.grid = jax.sharding.Mesh(
            self.all.reshape(self.processes, -1), ("p", "l"), axis_types=(auto, auto)
        )

    def on(self, sharding, x):
        return jax.make_array_from_callback(x.shape, sharding, x.__getitem__, dtype=x.dtype)

    def sharded(self, *spec, x=None, mesh=None, kind=None):
        sharding = jax.NamedSharding(mesh or self.mesh, jax.P(*spec), memory_kind=kind)
        return self.on(sharding, values() if x is None else x)

    def part(self, devices, *spec, x=None):
        mesh = jax.sharding.Mesh(np.asarray(devices), ("d",))
        return self.sharded(*spec, mesh=mesh, x=x)


def table(on: Devices) -> dict[str, Any]:
    """Returns trees that can be saved, all of whose values are the same on all processes."""
    w = on.sharded("d")
    first, last = ([d for d in on.all if d.process_index == p] for p in (0, on.processes - 1))
    keys = {
        impl: jax.random.split(jax.random.key(3, impl=impl), 12) for impl in ("threefry2x32", "rbg")
    }
    spread = jax.jit(lambda k: k, out_shardings=jax.NamedSharding(on.mesh, jax.P("d")))
    trees = {
        **{f"sharded {dtype}": on.sharded("d", x=values(dtype)) for dtype in _DTYPES},
        **{f"local {dtype}": jnp.asarray(values(dtype)) for dtype in _DTYPES},
        **{f"NumPy {dtype}": values(dtype) for dtype in (*_DTYPES, "float64", "int64")},
        "second dimension": on.sharded(None, "d"),
        "replicated": on.sharded(),
        "replicated on a row": on.sharded("p", mesh=on.grid),
        "replicated on a column": on.sharded("l", mesh=on.grid),
        "grid": on.sharded("p", "l", mesh=on.grid),
        "both axes": on.sharded(("p", "l"), mesh=on.grid),
        "no elements": on.sharded("d", x=values(shape=(24, 0))),
        "global scalar": on.sharded(x=values(shape=(), seed=5)),
        "large": on.sharded("d", x=values(shape=(48, 12_011))),
        "reversed devices": on.part(on.all[::-1], "d"),
        "devices of the first process": on.part(first, "d"),
        "devices of the last process": on.part(last),
        "a device of each process": on.part(on.all[:: len(on.local)], "d"),
        "a device of the last process": on.part(last[:1]),
        "pinned": on.sharded("d", kind="pinned_host"),
        "unpinned": on.sharded("d", kind=_unpinned(on.local[0])),
        "a count before an array": {"count": jnp.int32(7), "w": w},
        "a weak scalar": [jnp.asarray(3), jnp.asarray(2.5), w],
        "a weak array": jnp.broadcast_to(jnp.asarray(1.5), (5,)) * 2,
        "a local key": {"key": jax.random.key(3), "w": w},
        "local keys": [keys["rbg"], keys["threefry2x32"]],
        "global keys": [spread(keys["threefry2x32"]), spread(keys["rbg"])],
        "old keys": jax.random.PRNGKey(0),
        "on a device": {"a": jax.device_put(np.arange(5), on.local[-1]), "w": w},
        "on local devices": on.part(on.local, "d"),
        "replicated on local devices": on.part(on.local),
        "local pinned": jax.device_put(
            values(), jax.sharding.SingleDeviceSharding(on.local[0], memory_kind="pinned_host")
        ),
        "generic": [np.float64(1 / 3), np.int16(-3), np.bool_(True), np.float32("nan")],
        "Python": [True, False, 0, -(1 << 70), 1.5, float("nan"), -float("inf"), "", "x]'Ä", None],
        "nothing": [None, {}, [], (), Empty()],
        "one array": w,
        "named": Point(w, Point(jnp.float32(1), None)),
        "registered": Registered(w, {"b": [jnp.ones(3)]}),
        "ordered": collections.OrderedDict(b=w, a=jnp.ones(2)),
        "default": collections.defaultdict(list, a=[w]),
        "numbers as keys": {7: w, 3: np.arange(3)},
        "many": [jnp.int32(i) for i in range(100)],
        **_of_libraries(on),
    }
    return trees


def _of_libraries(on: Devices) -> dict[str, Any]:
    try:
        import optax
        from flax import nnx, struct
        from flax.core import freeze
    except ImportError:
        return {}
    params = {"w": on.sharded("d"), "b": on.sharded(x=values(shape=(12,)))}
    optimizers = {
        "sgd": optax.sgd(0.1, momentum=0.9),
        "adam": optax.adam(0.1),
        "adamw": optax.adamw(optax.cosine_decay_schedule(0.1, 100)),
        "clipped": optax.chain(optax.clip_by_global_norm(1.0), optax.lion(0.1)),
        "masked": optax.masked(optax.adam(0.1), {"w": True, "b": False}),
        "parts": optax.multi_transform(
            {"a": optax.adam(0.1), "z": optax.set_to_zero()}, {"w": "a", "b": "z"}
        ),
        "injected": optax.inject_hyperparams(optax.adam)(learning_rate=0.1),
        "steps": optax.MultiSteps(optax.adam(0.1), 2).gradient_transformation(),
    }
    states = {f"optax {name}": tx.init(params) for name, tx in optimizers.items()}
    states |= {f"optax {name}, jit": jax.jit(tx.init)(params) for name, tx in optimizers.items()}

    @struct.dataclass
    class State:
        step: Any
        params: Any

    return {
        **states,
        "flax rngs": nnx.state(nnx.Rngs(0, dropout=1)),
        "flax model": nnx.state(nnx.Linear(3, 4, rngs=nnx.Rngs(0))),
        "flax frozen": freeze(params),
        "flax struct": State(jnp.int32(0), params),
    }


def own(on: Devices) -> dict[str, Any]:
    """Returns trees whose values differ from process to process."""
    return {
        "own scalar": jnp.int32(on.rank),
        "own array": {"w": on.sharded("d"), "a": jnp.arange(5.0) + on.rank},
        "own key": jax.random.key(on.rank),
        "own NumPy": np.arange(3) * (on.rank + 1),
        "own devices": on.part(on.local, "d", x=values(seed=on.rank)),
        "own pinned": jax.device_put(
            values(seed=on.rank),
            jax.sharding.SingleDeviceSharding(on.local[0], memory_kind="pinned_host"),
        ),
    }


def disagreeing(on: Devices) -> dict[str, Any]:
    """Returns trees that differ on the last process in what all processes have to agree on."""
    odd = on.rank == on.processes - 1
    w, square = on.sharded("d"), values(shape=(24, 24))
    return {
        "a leaf more": {"a": w} | ({"b": jnp.ones(3)} if odd else {}),
        "a leaf less": [w] if odd else [w, np.ones(3)],
        "another name": {"b" if odd else "a": w},
        "another order": {"w": [w, jnp.ones(24)][:: -1 if odd else 1]},
        "another dtype": on.sharded("d", x=values("int32" if odd else "float32")),
        "another shape": on.sharded("d", x=values(shape=(24, 6 if odd else 12))),
        "another spec": on.sharded(*((None, "d") if odd else ("d",)), x=square),
        "replicated on one": on.sharded(*(() if odd else ("d",))),
        "another local dtype": jnp.ones(3, jnp.float16 if odd else jnp.float32),
        "another local shape": jnp.ones(4 if odd else 3),
        "another NumPy shape": np.ones((1, 3) if odd else (3, 1)),
        "another NumPy dtype": np.ones(3, np.int64 if odd else np.float64),
        "a weak type": jnp.asarray(1.0) if odd else jnp.float32(1),
        "another key": jax.random.key(0, impl="rbg" if odd else "threefry2x32"),
        "a key and an array": jax.random.key(0) if odd else jax.random.PRNGKey(0),
        "local and global": jnp.asarray(values()) if odd else on.sharded(),
        "an array and a number": 1.0 if odd else jnp.float32(1),
        "an array and None": {"a": None if odd else jnp.ones(3), "w": w},
        "another value": {"w": w, "n": 2 if odd else 1},
        "True and 1": True if odd else 1,
        "1 and 1.0": 1.0 if odd else 1,
        "1 and '1'": "1" if odd else 1,
        "None and a value": "" if odd else None,
        "other devices": on.part(on.all[:: -1 if odd else 1], "d"),
    }


def refused(on: Devices) -> dict[str, Any]:
    """Returns leaves that a snapshot cannot hold."""
    deleted = jnp.ones(3)
    deleted.delete()
    twice = on.sharded("d")

    class Config(dict):
        pass

    class Log(list):
        pass

    class Pair(tuple):
        pass

    class Number(int):
        pass

    return {
        "a dict": Config(a=twice),
        "an empty dict": Config(),
        "a counter": collections.Counter(a=3),
        "a list": Log([1]),
        "a tuple": Pair((1, 2)),
        "a set": {1, 2},
        "a deque of text": collections.ChainMap({"a": 1}),
        "a number": Number(3),
        "a masked array": np.ma.masked_array(np.ones(3), [0, 1, 0]),
        "objects": np.array([None]),
        "bytes": b"abc",
        "deleted": deleted,
        "a shape": jax.ShapeDtypeStruct((3,), np.float32),
    }


def assert_same(expected, found):
    """Asserts that this process has the same bits, types and shardings in two trees."""
    assert jax.tree.structure(expected) == jax.tree.structure(found)
    flat, _ = jax.tree_util.tree_flatten_with_path(expected)
    for (path, a), b in zip(flat, jax.tree.leaves(found), strict=True):
        name = jax.tree_util.keystr(path)
        assert type(a) is type(b), (name, a, b)
        if not hasattr(a, "dtype"):
            assert repr(a) == repr(b), (name, a, b)
            continue
        assert (a.dtype, a.shape) == (b.dtype, b.shape), (name, a, b)
        if not isinstance(a, jax.Array):
            assert a.tobytes() == b.tobytes(), (name, a, b)
            continue
        assert a is not b, name
        assert (a.sharding, a.committed) == (b.sharding, b.committed), (
            name,
            a.sharding,
            b.sharding,
        )
        if jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key):
            assert jax.random.key_impl(a) == jax.random.key_impl(b), name
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        assert a.weak_type == b.weak_type, name
        for x, y in zip(a.addressable_shards, b.addressable_shards, strict=True):
            assert (x.device, x.index) == (y.device, y.index), name
            assert np.asarray(x.data).tobytes() == np.asarray(y.data).tobytes(), (name, x, y)
