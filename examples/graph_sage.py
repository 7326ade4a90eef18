"""GraphSAGE: a graph neural network whose features lie in the pool, once for all processes.

    python -m jax_cxl.launch -n 2 examples/graph_sage.py
    python -m jax_cxl.launch -n 2 examples/graph_sage.py --features=host
    python -m jax_cxl.launch -n 2 examples/graph_sage.py --preset=10m    # sizes for GPUs

A power-law graph is made on the spot: the edges of a node follow from its number. Each process
samples neighbors of its own nodes, takes the features of all these nodes from the table, and learns
the classes of the nodes. With --features=host each process gathers the features on its host, and
copies them to its device. Both print the same losses and the same accuracy.
"""

import contextlib
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags

import jax_cxl

_WHERE = flags.DEFINE_string("where", "shm:sage?size=64MiB", "URI of the store.")
_NODES = flags.DEFINE_integer("nodes", 20_000, "Nodes of the graph.")
_STEPS = flags.DEFINE_integer("steps", 100, "How many steps to train.")
_BATCH = flags.DEFINE_integer("batch", 256, "Nodes of each process in a step.")
_FEATURES = flags.DEFINE_enum("features", "pool", ["pool", "host"], "Who fetches the features.")
_PRESET = flags.DEFINE_enum(
    "preset", None, ["10m"], "Sizes for GPUs: 10 million nodes, 5.1 GB. Other flags override it."
)
_PRESETS = {"10m": {"where": "shm:sage?size=6GiB", "nodes": 10_000_000, "batch": 1024}}

_WIDTH, _HIDDEN, _CLASSES, _DEGREE = 128, 128, 8, 16
_FANOUT = (10, 5)
_RATE = 0.5
_NAME = "features"

Parameters = dict[str, jax.Array]


def hashed(*words: Any) -> np.ndarray:
    """Returns random numbers in [0, 1). Equal integers `words` always give equal numbers."""
    x: Any = np.uint64(0x9E3779B97F4A7C15)
    for word in words:
        x = (x ^ np.asarray(word).astype(np.uint64)) * np.uint64(0xBF58476D1CE4E5B9)
        x ^= x >> np.uint64(29)
    numbers: np.ndarray = (x >> np.uint64(11)).astype(np.float64) / (1 << 53)
    return numbers


def neighbors(nodes: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Returns the nodes to which the edges with numbers `edges` of `nodes` lead.

    Most edges lead to few nodes: a power law.
    """
    return (_NODES.value * hashed(nodes, edges, 1) ** 3).astype(np.int32)


def classes_of(nodes: np.ndarray) -> np.ndarray:
    """Returns the classes of nodes."""
    return (hashed(nodes, 2) * _CLASSES).astype(np.int32)


def features_of(nodes: np.ndarray) -> np.ndarray:
    """Returns features: noise, in which the class of a node is hard to see."""
    noise = hashed(nodes[:, None], np.arange(_WIDTH), 3) - 0.5
    block = _WIDTH // _CLASSES
    of_class = np.arange(_WIDTH) // block == classes_of(nodes)[:, None]
    return (noise + 0.1 * of_class).astype(np.float32)


def sample(rng: np.random.Generator, count: int) -> tuple[list[np.ndarray], np.ndarray]:
    """Returns three layers of nodes, and the class of each node of the first layer.

    The layers are random nodes, some neighbors of each of them, and some neighbors of each of these
    neighbors. A node has the class of the neighbor to which its first edge leads. This neighbor is
    always sampled.
    """
    layers = [rng.integers(0, _NODES.value, count, np.int32)]
    for fanout in _FANOUT:
        last = layers[-1][..., None]
        edges = rng.integers(0, _DEGREE, (*layers[-1].shape, fanout))
        edges[..., : fanout // 2] = 0
        layers.append(neighbors(last, edges))
    return layers, classes_of(neighbors(layers[0], np.zeros(count, np.int64)))


def predict(parameters: Parameters, x: list[jax.Array]) -> jax.Array:
    """Returns logits for the first layer of `sample`, from the features of all three layers."""

    def combine(own: jax.Array, others: jax.Array, which: str) -> jax.Array:
        mean = others.mean(-2)
        return own @ parameters[f"own{which}"] + mean @ parameters[f"others{which}"]

    near = jax.nn.relu(combine(x[0], x[1], "1"))
    far = jax.nn.relu(combine(x[1], x[2], "1"))
    return combine(near, far, "2")


def loss(parameters: Parameters, x: list[jax.Array], classes: jax.Array) -> Any:
    """Returns the mean loss, and the share of nodes whose class is predicted right."""
    logits = predict(parameters, x)
    chances = jnp.take_along_axis(jax.nn.log_softmax(logits), classes[:, None], 1)
    return -chances.mean(), (logits.argmax(-1) == classes).mean()


def initial() -> Parameters:
    """Returns the parameters, the same on all processes."""
    shapes = {"1": (_WIDTH, _HIDDEN), "2": (_HIDDEN, _CLASSES)}
    keys = iter(jax.random.split(jax.random.key(0), 4))
    return {
        f"{side}{which}": jax.random.normal(next(keys), shape) * shape[0] ** -0.5
        for side in ("own", "others")
        for which, shape in shapes.items()
    }


def open_table() -> jax_cxl.Table:
    """Makes the table in the first process if the store has none, and opens it in all."""
    store = jax_cxl.Store(_WHERE.value)
    if jax.process_index() == 0:
        step = 1 << 16
        starts = range(0, _NODES.value, step)
        blocks = (features_of(np.arange(s, min(s + step, _NODES.value))) for s in starts)
        shape = (_NODES.value, _WIDTH)
        # If the store has the table already, this raises an error before it takes a block.
        with contextlib.suppress(jax_cxl.StoreError):
            jax_cxl.Table.create(store, _NAME, blocks, shape=shape, dtype=np.float32)
    jax_cxl.barrier(name="the table is made")
    table = jax_cxl.Table.open(store, _NAME)
    if table.shape[0] != _NODES.value:
        raise app.UsageError(f"{_WHERE.value} has a graph of {table.shape[0]} nodes: delete it")
    return table


def main(_) -> None:
    """Trains."""
    for name, value in _PRESETS.get(_PRESET.value or "", {}).items():
        if not flags.FLAGS[name].present:
            flags.FLAGS[name].value = value
    jax_cxl.initialize()
    mesh = jax_cxl.make_mesh((jax.device_count(),), ("i",))
    table = open_table()
    on_host = table.view() if _FEATURES.value == "host" else None

    def step(parameters: Parameters, x: list[jax.Array], classes: jax.Array) -> Any:
        if on_host is None:
            x = [table.take(ids, mode="error") for ids in x]
        found, slopes = jax.value_and_grad(loss, has_aux=True)(parameters, x, classes)
        found, slopes = jax_cxl.pmean((found, slopes), "i")
        return jax.tree.map(lambda p, slope: p - _RATE * slope, parameters, slopes), found

    shared, divided = jax.P(), jax.P("i")
    run = jax.jit(
        jax.shard_map(
            step,
            mesh=mesh,
            in_specs=(shared, divided, divided),
            out_specs=shared,
            check_vma=False,
        )
    )
    sharding = jax.NamedSharding(mesh, divided)
    parameters = jax.device_put(initial(), jax.NamedSharding(mesh, shared))
    rng = np.random.default_rng(jax.process_index())
    accuracies, times = [], []
    for number in range(_STEPS.value):
        layers, classes = sample(rng, _BATCH.value * jax.local_device_count())
        start = time.perf_counter()
        if on_host is not None:
            layers = [on_host[ids] for ids in layers]
        given = jax.tree.map(
            lambda x: jax.make_array_from_process_local_data(sharding, x), (layers, classes)
        )
        parameters, (value, right) = jax.block_until_ready(run(parameters, *given))
        times.append(time.perf_counter() - start)
        accuracies.append(float(right))
        if jax.process_index() == 0 and (number + 1) % 10 == 0:
            print(f"step {number + 1}: loss {float(value)!r}", flush=True)
    if jax.process_index() == 0:
        print(
            f"features of the {_FEATURES.value}: accuracy {np.mean(accuracies[-10:]):.4f},"
            f" {1e3 * np.median(times[2:]):.2f} ms a batch"
        )


if __name__ == "__main__":
    app.run(main)
